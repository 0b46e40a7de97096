//! Envoy's response flags: why a request or connection ended other than by a plain answer of the upstream.

use std::fmt;

macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident = $short:literal, $long:literal;)*) => {
        /// One reason (`%RESPONSE_FLAGS%`, and Istio's label `response_flags`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum ResponseFlag {
            $($(#[$doc])* $name,)*
        }

        impl ResponseFlag {
            /// Every flag, in the order in which Envoy prints them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Short name, as in `%RESPONSE_FLAGS%`.
            pub fn short(self) -> &'static str {
                match self { $(Self::$name => $short,)* }
            }

            /// Long name, as in `%RESPONSE_FLAGS_LONG%`.
            pub fn long(self) -> &'static str {
                match self { $(Self::$name => $long,)* }
            }
        }
    };
}

flags! {
    /// Local service failed its health check.
    FailedLocalHealthCheck = "LH", "FailedLocalHealthCheck";
    /// No endpoint of the cluster may be used.
    NoHealthyUpstream = "UH", "NoHealthyUpstream";
    /// The request's timeout passed.
    UpstreamRequestTimeout = "UT", "UpstreamRequestTimeout";
    /// This proxy reset the stream.
    LocalReset = "LR", "LocalReset";
    /// The upstream reset the stream.
    UpstreamRemoteReset = "UR", "UpstreamRemoteReset";
    /// Connecting upstream failed.
    UpstreamConnectionFailure = "UF", "UpstreamConnectionFailure";
    /// The upstream closed the connection.
    UpstreamConnectionTermination = "UC", "UpstreamConnectionTermination";
    /// A circuit breaker was open.
    UpstreamOverflow = "UO", "UpstreamOverflow";
    /// No route, or no filter chain, matched.
    NoRouteFound = "NR", "NoRouteFound";
    /// A fault filter delayed the request.
    DelayInjected = "DI", "DelayInjected";
    /// A fault filter aborted the request.
    FaultInjected = "FI", "FaultInjected";
    /// Rate limited.
    RateLimited = "RL", "RateLimited";
    /// Refused by the external authorization service.
    UnauthorizedExternalService = "UAEX", "UnauthorizedExternalService";
    /// The rate limit service failed.
    RateLimitServiceError = "RLSE", "RateLimitServiceError";
    /// The client closed the connection.
    DownstreamConnectionTermination = "DC", "DownstreamConnectionTermination";
    /// Retries, or connection attempts, are used up.
    UpstreamRetryLimitExceeded = "URX", "UpstreamRetryLimitExceeded";
    /// The stream was idle for too long.
    StreamIdleTimeout = "SI", "StreamIdleTimeout";
    /// An `x-envoy-*` request header was not valid.
    InvalidEnvoyRequestHeaders = "IH", "InvalidEnvoyRequestHeaders";
    /// The client broke the HTTP protocol.
    DownstreamProtocolError = "DPE", "DownstreamProtocolError";
    /// The upstream stream lasted too long.
    UpstreamMaxStreamDurationReached = "UMSDR", "UpstreamMaxStreamDurationReached";
    /// Answered by a cache.
    ResponseFromCacheFilter = "RFCF", "ResponseFromCacheFilter";
    /// A filter's configuration did not come in time.
    NoFilterConfigFound = "NFCF", "NoFilterConfigFound";
    /// The request or connection lasted too long.
    DurationTimeout = "DT", "DurationTimeout";
    /// The upstream broke the HTTP protocol.
    UpstreamProtocolError = "UPE", "UpstreamProtocolError";
    /// The route's cluster does not exist.
    NoClusterFound = "NC", "NoClusterFound";
    /// The overload manager ended the request.
    OverloadManager = "OM", "OverloadManagerTerminated";
    /// A host name could not be resolved.
    DnsResolutionFailed = "DF", "DnsResolutionFailed";
    /// Dropped by the endpoints' drop policy.
    DropOverload = "DO", "DropOverload";
    /// The client reset the stream.
    DownstreamRemoteReset = "DR", "DownstreamRemoteReset";
    /// Dropped by an unconditional drop policy.
    UnconditionalDropOverload = "UDO", "UnconditionalDropOverload";
}

/// A set of [`ResponseFlag`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ResponseFlags(u32);

impl ResponseFlags {
    /// No flag.
    pub const NONE: Self = Self(0);

    /// Adds a flag.
    pub fn set(&mut self, flag: ResponseFlag) {
        self.0 |= 1 << (flag as u8);
    }

    /// Whether the flag is there.
    pub fn has(self, flag: ResponseFlag) -> bool {
        self.0 & (1 << (flag as u8)) != 0
    }

    /// Whether no flag is there.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The flags, in Envoy's order.
    pub fn iter(self) -> impl Iterator<Item = ResponseFlag> {
        ResponseFlag::ALL.iter().copied().filter(move |flag| self.has(*flag))
    }

    /// The long names, separated by commas; empty when there are none.
    pub fn long(self) -> String {
        self.iter().map(ResponseFlag::long).collect::<Vec<_>>().join(",")
    }
}

impl From<ResponseFlag> for ResponseFlags {
    fn from(flag: ResponseFlag) -> Self {
        let mut flags = Self::NONE;
        flags.set(flag);
        flags
    }
}

/// The short names separated by commas, or `-`.
impl fmt::Display for ResponseFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("-");
        }
        for (i, flag) in self.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            f.write_str(flag.short())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_flag_has_names_of_its_own_and_a_bit() {
        assert_eq!(ResponseFlag::ALL.len(), 30);
        let mut shorts = HashSet::new();
        let mut longs = HashSet::new();
        for flag in ResponseFlag::ALL {
            assert!(shorts.insert(flag.short()), "{flag:?}");
            assert!(longs.insert(flag.long()), "{flag:?}");
            let set = ResponseFlags::from(*flag);
            assert!(set.has(*flag));
            assert_eq!(set.to_string(), flag.short());
            assert_eq!(set.long(), flag.long());
        }
    }

    #[test]
    fn sets() {
        let mut flags = ResponseFlags::NONE;
        assert_eq!(flags.to_string(), "-");
        flags.set(ResponseFlag::UpstreamRetryLimitExceeded);
        flags.set(ResponseFlag::UpstreamConnectionFailure);
        assert_eq!(flags.to_string(), "UF,URX");
        assert_eq!(flags.long(), "UpstreamConnectionFailure,UpstreamRetryLimitExceeded");
    }
}
