//! Header names that the data path looks at. A parsed field carries its [`Known`] number, so that looking one up
//! compares a byte per field instead of a string.

macro_rules! known {
    ($($variant:ident = $name:literal,)+) => {
        /// A header name that Heddle itself reads or writes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum Known {
            /// Any other name.
            Other,
            $($variant,)+
        }

        impl Known {
            /// The name in lower case; empty for [`Known::Other`].
            pub const fn name(self) -> &'static str {
                match self {
                    Known::Other => "",
                    $(Known::$variant => $name,)+
                }
            }

            /// The number of a lower-case name.
            #[inline]
            pub fn of(name: &[u8]) -> Known {
                known_by_bytes(name)
            }
        }

        #[inline]
        fn known_by_bytes(name: &[u8]) -> Known {
            $(const $variant: &[u8] = $name.as_bytes();)+
            #[allow(non_upper_case_globals)]
            match name {
                $($variant => Known::$variant,)+
                _ => Known::Other,
            }
        }

        // A bit of a `KnownSet` for each, and one for the others.
        const _: () = assert!([$(Known::$variant,)+].len() < u64::BITS as usize);

        #[cfg(test)]
        pub(crate) const ALL: &[Known] = &[$(Known::$variant,)+];
    };
}

#[allow(non_upper_case_globals)]
mod table {
    known! {
        Host = "host",
        Connection = "connection",
        ContentLength = "content-length",
        ContentType = "content-type",
        TransferEncoding = "transfer-encoding",
        Te = "te",
        Trailer = "trailer",
        Upgrade = "upgrade",
        KeepAlive = "keep-alive",
        ProxyConnection = "proxy-connection",
        Http2Settings = "http2-settings",
        Expect = "expect",
        Date = "date",
        Server = "server",
        Via = "via",
        Cookie = "cookie",
        Location = "location",
        UserAgent = "user-agent",
        RequestId = "x-request-id",
        ForwardedFor = "x-forwarded-for",
        ForwardedProto = "x-forwarded-proto",
        ForwardedClientCert = "x-forwarded-client-cert",
        GrpcStatus = "grpc-status",
        GrpcMessage = "grpc-message",
        GrpcTimeout = "grpc-timeout",
        AttemptCount = "x-envoy-attempt-count",
        DecoratorOperation = "x-envoy-decorator-operation",
        DownstreamServiceCluster = "x-envoy-downstream-service-cluster",
        DownstreamServiceNode = "x-envoy-downstream-service-node",
        ExpectedTimeout = "x-envoy-expected-rq-timeout-ms",
        ExternalAddress = "x-envoy-external-address",
        ForceTrace = "x-envoy-force-trace",
        Hedge = "x-envoy-hedge-on-per-try-timeout",
        Internal = "x-envoy-internal",
        IpTags = "x-envoy-ip-tags",
        MaxRetries = "x-envoy-max-retries",
        OriginalPath = "x-envoy-original-path",
        OriginalHost = "x-envoy-original-host",
        Overloaded = "x-envoy-overloaded",
        PeerMetadata = "x-envoy-peer-metadata",
        PeerMetadataId = "x-envoy-peer-metadata-id",
        RetriableHeaderNames = "x-envoy-retriable-header-names",
        RetriableStatusCodes = "x-envoy-retriable-status-codes",
        RetryGrpcOn = "x-envoy-retry-grpc-on",
        RetryOn = "x-envoy-retry-on",
        UpstreamAltStatName = "x-envoy-upstream-alt-stat-name",
        UpstreamTimeout = "x-envoy-upstream-rq-timeout-ms",
        UpstreamTimeoutAlt = "x-envoy-upstream-rq-timeout-alt-response",
        UpstreamTryTimeout = "x-envoy-upstream-rq-per-try-timeout-ms",
        UpstreamServiceTime = "x-envoy-upstream-service-time",
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn every_name_finds_its_number() {
            for known in ALL {
                assert_eq!(Known::of(known.name().as_bytes()), *known, "{}", known.name());
                assert_eq!(known.name(), known.name().to_ascii_lowercase());
                assert!(
                    !heddle_matching::is_respelled(known.name().as_bytes()),
                    "{}",
                    known.name()
                );
            }
            assert_eq!(Known::of(b"x-something"), Known::Other);
            assert_eq!(Known::of(b""), Known::Other);
        }
    }
}

#[cfg(test)]
pub(super) use table::ALL;
pub use table::Known;

/// A set of names, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownSet(u64);

impl KnownSet {
    /// These names.
    pub(crate) const fn of(names: &[Known]) -> Self {
        let mut set = Self(0);
        let mut i = 0;
        while i < names.len() {
            set.add(names[i]);
            i += 1;
        }
        set
    }

    #[inline]
    pub(crate) const fn add(&mut self, known: Known) {
        self.0 |= 1 << known as u8;
    }

    #[inline]
    pub(crate) const fn remove(&mut self, others: Self) {
        self.0 &= !others.0;
    }

    #[inline]
    pub(crate) const fn has(self, known: Known) -> bool {
        self.0 & (1 << known as u8) != 0
    }

    /// The names of either.
    pub(crate) const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether no name is in both.
    #[inline]
    pub(crate) const fn is_disjoint(self, other: Self) -> bool {
        self.0 & other.0 == 0
    }
}
