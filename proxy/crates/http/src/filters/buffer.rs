//! `envoy.filters.http.buffer`: holds a request back until it is there whole, for servers that should not wait for slow
//! clients.

use std::sync::Arc;

use heddle_config::filters::RouteFilterConfig;
use heddle_config::filters::buffer::{Buffer as Config, BufferPerRoute};

use super::body::AtLimit;
use super::{Call, HttpFilter, Setup, Verdict};
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

    async fn on_request(&self, call: &mut Call<'_>, (): &mut ()) -> Verdict {
        let route = call.route_configs::<Self>();
        let settings = match route.first() {
            Some(route) => route.buffer.as_ref(),
            None => Some(&*self.config),
        };
        let Some(settings) = settings else {
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
