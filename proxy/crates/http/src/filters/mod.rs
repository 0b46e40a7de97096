//! HTTP filters, in the order configured. Adding one: a file here and a line in the list below; its configuration is a
//! file and a line of `heddle_config::filters`.

mod body;
mod buffer;
mod call;
mod compression;
mod compressor;
mod cors;
mod decompressor;
mod ext_authz;
mod fault;
mod grpc_web;
mod header_mutation;
mod header_to_metadata;
mod istio_stats;
mod jwt_authn;
mod local_ratelimit;
pub(crate) mod peer_metadata;
mod rbac;
mod run;

use std::sync::Arc;

use heddle_config::filters::{FilterConfig, RouteFilterConfig};
use heddle_config::snapshot::TrafficDirection;

pub(crate) use body::{Filtered, ResponseContent};
pub use ext_authz::NetworkExtAuthz;

pub(crate) use call::{Call, End, RouteConfigs, Verdict};
pub(crate) use run::{Client, Shown, on_end, on_request, on_request_waiting, on_response, on_response_waiting};

use crate::worker::HttpWorker;

/// What filters are made with, once per connection manager and worker.
#[derive(Clone, Copy)]
pub(crate) struct Setup<'s> {
    pub(crate) worker: &'s HttpWorker,
    pub(crate) direction: TrafficDirection,
    /// The connection manager's `stat_prefix`.
    pub(crate) stat_prefix: &'s str,
}

/// One kind of filter. What an instance holds belongs to one connection manager on one worker.
pub(crate) trait HttpFilter: Sized {
    /// What it is configured by.
    type Config;
    /// What `typed_per_filter_config` may say to it.
    type Route: 'static;
    /// What it keeps for a request, from its head to its end; dropped as soon as the request is over. Every filter's has
    /// the size of the largest: box what is large.
    type State: Default;

    fn new(config: &Arc<Self::Config>, setup: &Setup<'_>) -> Self;

    /// What a route says to this kind of filter.
    fn route_config(_config: &RouteFilterConfig) -> Option<&Self::Route> {
        None
    }

    /// Sees, and may change or answer, the request head. A filter that has to wait before the request goes on says so
    /// ([`Call::wait`]), and goes on in [`HttpFilter::on_request_waiting`].
    fn on_request(&self, _call: &mut Call<'_>, _state: &mut Self::State) -> Verdict {
        Verdict::Continue
    }

    /// The rest of [`HttpFilter::on_request`] for a filter that waits: for the request's body, for a server that it asks, or for
    /// whatever else. Meanwhile the client's departure, the stream's deadlines and the end of a drain are looked after: then
    /// it is dropped where it stands. The default answers 500: a filter that says [`Call::wait`] must have this.
    async fn on_request_waiting(&self, _call: &mut Call<'_>, _state: &mut Self::State) -> Verdict {
        Verdict::broken()
    }

    /// Sees, and may change, the response head, whoever made it. Called in reverse order. A filter that has to wait
    /// before the head goes out says so ([`Call::wait`]), and goes on in [`HttpFilter::on_response_waiting`].
    fn on_response(&self, _call: &mut Call<'_>, _state: &mut Self::State) {}

    /// The rest of [`HttpFilter::on_response`] for a filter that waits, looked after as in
    /// [`HttpFilter::on_request_waiting`]. The default does nothing.
    async fn on_response_waiting(&self, _call: &mut Call<'_>, _state: &mut Self::State) {}

    /// The request is over.
    fn on_end(&self, _end: End<'_>, _state: &mut Self::State) {}
}

macro_rules! filters {
    ($($(#[$doc:meta])* $name:ident($filter:ty);)*) => {
        /// A configured filter.
        pub(crate) enum Filter {
            $($(#[$doc])* $name($filter),)*
        }

        /// What a filter keeps for a request.
        #[derive(Debug)]
        pub(crate) enum FilterState {
            $($(#[$doc])* $name(<$filter as HttpFilter>::State),)*
        }

        impl Filter {
            pub(crate) fn new(config: &FilterConfig, setup: &Setup<'_>) -> Self {
                match config {
                    $(FilterConfig::$name(config) => Self::$name(<$filter as HttpFilter>::new(config, setup)),)*
                }
            }

            fn state(&self) -> FilterState {
                match self {
                    $(Self::$name(_) => FilterState::$name(Default::default()),)*
                }
            }

            fn on_request(&self, call: &mut Call<'_>, state: &mut FilterState) -> Verdict {
                match (self, state) {
                    $((Self::$name(filter), FilterState::$name(state)) => filter.on_request(call, state),)*
                    _ => Verdict::broken(),
                }
            }

            async fn on_request_waiting(&self, call: &mut Call<'_>, state: &mut FilterState) -> Verdict {
                match (self, state) {
                    $((Self::$name(filter), FilterState::$name(state)) => filter.on_request_waiting(call, state).await,)*
                    _ => Verdict::broken(),
                }
            }

            fn on_response(&self, call: &mut Call<'_>, state: &mut FilterState) {
                match (self, state) {
                    $((Self::$name(filter), FilterState::$name(state)) => filter.on_response(call, state),)*
                    _ => {}
                }
            }

            async fn on_response_waiting(&self, call: &mut Call<'_>, state: &mut FilterState) {
                match (self, state) {
                    $((Self::$name(filter), FilterState::$name(state)) => filter.on_response_waiting(call, state).await,)*
                    _ => {}
                }
            }

            fn on_end(&self, end: End<'_>, state: &mut FilterState) {
                match (self, state) {
                    $((Self::$name(filter), FilterState::$name(state)) => filter.on_end(end, state),)*
                    _ => {}
                }
            }
        }
    };
}

filters! {
    /// `envoy.filters.http.buffer`.
    Buffer(buffer::Buffer);
    /// `envoy.filters.http.compressor`.
    Compressor(compressor::Compressor);
    /// `envoy.filters.http.cors`.
    Cors(cors::Cors);
    /// `envoy.filters.http.decompressor`.
    Decompressor(decompressor::Decompressor);
    /// `envoy.filters.http.ext_authz`.
    ExtAuthz(ext_authz::ExtAuthz);
    /// `envoy.filters.http.fault`.
    Fault(fault::Fault);
    /// `envoy.filters.http.grpc_web`.
    GrpcWeb(grpc_web::GrpcWeb);
    /// `envoy.filters.http.header_mutation`.
    HeaderMutation(header_mutation::HeaderMutation);
    /// `envoy.filters.http.header_to_metadata`.
    HeaderToMetadata(header_to_metadata::HeaderToMetadata);
    /// `envoy.filters.http.jwt_authn`.
    JwtAuthn(jwt_authn::JwtAuthn);
    /// `envoy.filters.http.local_ratelimit`.
    LocalRateLimit(local_ratelimit::LocalRateLimit);
    /// `envoy.filters.http.rbac`.
    Rbac(rbac::Rbac);
    /// `istio.stats`.
    IstioStats(istio_stats::IstioStats);
    /// `istio.metadata_exchange`.
    PeerMetadata(peer_metadata::PeerMetadata);
}
