//! `envoy.filters.http.decompressor`: decompresses requests and responses, for those behind it that cannot.

use std::sync::Arc;

use heddle_config::filters::decompressor::{Decompressor as Config, Direction};
use heddle_telemetry::Counter;

use super::compression::{Bytes, Decompress, Errors, counter, no_transform};
use super::{Call, HttpFilter, Setup, Verdict};
use crate::body::BodyLength;
use crate::head::Fields;

const ACCEPT_ENCODING: &[u8] = b"accept-encoding";
const CONTENT_ENCODING: &[u8] = b"content-encoding";

/// One decompressor filter.
pub(crate) struct Decompressor {
    config: Arc<Config>,
    request: DirectionStats,
    response: DirectionStats,
    errors: Errors,
}

struct DirectionStats {
    decompressed: Counter,
    not_decompressed: Counter,
    bytes: Bytes,
}

impl HttpFilter for Decompressor {
    type Config = Config;
    type Route = std::convert::Infallible;
    type State = ();

    fn new(config: &Arc<Config>, setup: &Setup<'_>) -> Self {
        let stats = &setup.worker.stats;
        let name = &*config.library_name;
        let prefix = ["envoy_http_decompressor", name, config.library.stat_name()];
        let direction = |direction| {
            let prefix = [&prefix[..], &[direction]].concat();
            let counter = |name| counter(stats, &[&prefix[..], &[name]].concat(), setup.stat_prefix);
            DirectionStats {
                decompressed: counter("decompressed"),
                not_decompressed: counter("not_decompressed"),
                bytes: Bytes::new(stats, &prefix, setup.stat_prefix),
            }
        };
        Self {
            request: direction("request"),
            response: direction("response"),
            errors: Errors::new(config.library, stats, &prefix, setup.stat_prefix),
            config: Arc::clone(config),
        }
    }

    fn on_request(&self, call: &mut Call<'_>, (): &mut ()) -> Verdict {
        let config = &self.config;
        let fields = &mut call.exchange.request.fields;
        if config.response.enabled && config.advertise {
            advertise(fields, config.library.coding());
        }
        if call.has_body() {
            let fields = &mut call.exchange.request.fields;
            if let Some(body) = self.begin(config.request, &self.request, fields) {
                call.change_request(Box::new(body));
            }
        }
        Verdict::Continue
    }

    fn on_response(&self, call: &mut Call<'_>, (): &mut ()) {
        if matches!(call.response_length(), BodyLength::Empty | BodyLength::Tunnel) {
            return;
        }
        let fields = &mut call.exchange.response.fields;
        if let Some(body) = self.begin(self.config.response, &self.response, fields) {
            call.change_response(Box::new(body));
        }
    }
}

impl Decompressor {
    /// What decompresses a body with this head, which tells of it no more; none leaves it as it is.
    fn begin(&self, direction: Direction, stats: &DirectionStats, fields: &mut Fields) -> Option<Decompress> {
        let wanted = direction.enabled
            && (direction.ignore_no_transform || !no_transform(fields))
            && take_coding(fields, self.config.library.coding());
        if !wanted {
            stats.not_decompressed.inc();
            return None;
        }
        stats.decompressed.inc();
        Some(Decompress::new(
            self.config.library,
            &self.config.library_name,
            stats.bytes.clone(),
            self.errors.clone(),
        ))
    }
}

/// Takes the coding away when it is the first that is named, as in Envoy.
fn take_coding(fields: &mut Fields, coding: &str) -> bool {
    let Some(codings) = fields.joined(CONTENT_ENCODING) else {
        return false;
    };
    let (first, rest) = match codings.split_once(',') {
        Some((first, rest)) => (first, Some(rest.trim().to_owned())),
        None => (&*codings, None),
    };
    if !first.trim().eq_ignore_ascii_case(coding) {
        return false;
    }
    fields.remove(CONTENT_ENCODING);
    if let Some(rest) = rest {
        fields.push(CONTENT_ENCODING, rest.as_bytes());
    }
    true
}

/// Adds a coding to those that the client takes, once.
fn advertise(fields: &mut Fields, coding: &str) {
    let all = match fields.joined(ACCEPT_ENCODING) {
        None => coding.to_owned(),
        Some(accepted) => {
            // One that the client wants less, or not at all, is named without a weight now.
            let others = accepted.split(',').map(str::trim);
            let others = others.filter(|one| {
                let name = one.split(';').next().unwrap_or_default().trim();
                !one.is_empty() && !name.eq_ignore_ascii_case(coding)
            });
            let mut all: Vec<&str> = others.collect();
            all.push(coding);
            all.join(",")
        }
    };
    fields.set(ACCEPT_ENCODING, all.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_coding_is_taken() {
        let taken = |value: &str| {
            let mut fields = Fields::new();
            fields.push(CONTENT_ENCODING, value.as_bytes());
            let taken = take_coding(&mut fields, "gzip");
            (taken, fields.joined(CONTENT_ENCODING).map(|v| v.into_owned()))
        };
        assert_eq!(taken("gzip"), (true, None));
        assert_eq!(taken(" GZip , br"), (true, Some("br".into())));
        assert_eq!(taken("br, gzip"), (false, Some("br, gzip".into())));
        assert!(!take_coding(&mut Fields::new(), "gzip"));
    }
}
