//! `envoy.filters.http.buffer`: holds a request back until it is there whole, for servers that should not wait for slow
//! clients.

use std::sync::Arc;

use heddle_config::filters::RouteFilterConfig;
use heddle_config::filters::buffer::{Buffer as Config, BufferPerRoute};

use super::body::AtLimit;
use super::{Call, HttpFilter, RouteConfigs, Setup, Verdict};
use crate::body::BodyLength;

/// One buffer filter.
pub(crate) struct Buffer {
    config: Arc<Config>,
}

impl HttpFilter for Buffer {
    type Config = Config;
    type Route = BufferPerRoute;
    type State = ();

    fn new(config: &Arc<Config>, _: &Setup<'_>) -> Self {
        Self {
            config: Arc::clone(config),
        }
    }

    fn route_config(config: &RouteFilterConfig) -> Option<&BufferPerRoute> {
        match config {
            RouteFilterConfig::Buffer(config) => Some(config),
            _ => None,
        }
    }

    fn on_request(&self, call: &mut Call<'_>, (): &mut ()) -> Verdict {
        if call.has_body() && self.settings(&call.route_configs()).is_some() {
            call.wait();
        }
        Verdict::Continue
    }

    async fn on_request_waiting(&self, call: &mut Call<'_>, (): &mut ()) -> Verdict {
        let route = call.route_configs();
        let Some(settings) = self.settings(&route) else {
            return Verdict::Continue;
        };
        match call.body(settings.max_request_bytes, AtLimit::Refuse).await {
            Ok(held) => {
                if call.request_length() == BodyLength::Unknown {
                    call.set_request_length(held.bytes.len());
                }
                Verdict::Continue
            }
            Err(reply) => Verdict::Reply(reply),
        }
    }
}

impl Buffer {
    /// None where it is switched off.
    fn settings<'s>(&'s self, route: &'s RouteConfigs<Self>) -> Option<&'s Config> {
        match route.first() {
            Some(route) => route.buffer.as_ref(),
            None => Some(&self.config),
        }
    }
}
