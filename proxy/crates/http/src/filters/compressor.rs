//! `envoy.filters.http.compressor`: compresses what clients like compressed, and requests where that is configured.

use std::sync::Arc;

use heddle_config::filters::RouteFilterConfig;
use heddle_config::filters::compressor::{Compressor as Config, CompressorPerRoute, Direction};
use heddle_telemetry::Counter;

use super::compression::{Bytes, Compress, counter, media_type, no_transform};
use super::run::is_off;
use super::{Call, Filter, HttpFilter, Setup, Verdict};
use crate::body::BodyLength;
use crate::head::{Fields, Known};

const ACCEPT_ENCODING: &[u8] = b"accept-encoding";
const CONTENT_ENCODING: &[u8] = b"content-encoding";

/// One compressor filter.
pub(crate) struct Compressor {
    config: Arc<Config>,
    request: DirectionStats,
    response: DirectionStats,
    no_accept_header: Counter,
    header_used: Counter,
    header_overshadowed: Counter,
    header_identity: Counter,
    header_wildcard: Counter,
    header_not_valid: Counter,
    not_compressed_etag: Counter,
}

struct DirectionStats {
    compressed: Counter,
    not_compressed: Counter,
    too_small: Counter,
    bytes: Bytes,
}

impl HttpFilter for Compressor {
    type Config = Config;
    type Route = CompressorPerRoute;
    /// `accept-encoding` as it came.
    type State = Option<Box<str>>;

    fn new(config: &Arc<Config>, setup: &Setup<'_>) -> Self {
        let stats = &setup.worker.stats;
        let prefix = [
            "envoy_http_compressor",
            &*config.library_name,
            config.library.stat_name(),
        ];
        let counter = |prefix: &[&str], name| counter(stats, &[prefix, &[name]].concat(), setup.stat_prefix);
        let direction = |name: Option<&'static str>| {
            let prefix: Vec<&str> = prefix.iter().copied().chain(name).collect();
            DirectionStats {
                compressed: counter(&prefix, "compressed"),
                not_compressed: counter(&prefix, "not_compressed"),
                too_small: counter(&prefix, "content_length_too_small"),
                bytes: Bytes::new(stats, &prefix, setup.stat_prefix),
            }
        };
        Self {
            request: direction(Some("request")),
            response: direction(config.response_stats_apart.then_some("response")),
            no_accept_header: counter(&prefix, "no_accept_header"),
            header_used: counter(&prefix, "header_compressor_used"),
            header_overshadowed: counter(&prefix, "header_compressor_overshadowed"),
            header_identity: counter(&prefix, "header_identity"),
            header_wildcard: counter(&prefix, "header_wildcard"),
            header_not_valid: counter(&prefix, "header_not_valid"),
            not_compressed_etag: counter(&prefix, "not_compressed_etag"),
            config: Arc::clone(config),
        }
    }

    fn route_config(config: &RouteFilterConfig) -> Option<&CompressorPerRoute> {
        match config {
            RouteFilterConfig::Compressor(config) => Some(config),
            _ => None,
        }
    }

    fn on_request(&self, call: &mut Call<'_>, accepted: &mut Self::State) -> Verdict {
        let fields = &call.exchange.request.fields;
        *accepted = fields.joined(ACCEPT_ENCODING).map(Into::into);
        let route = call.route_configs::<Self>();
        let remove = route.first().and_then(|r| r.remove_accept_encoding);
        if self.is_enabled(route.first()) && remove.unwrap_or(self.config.remove_accept_encoding) {
            call.exchange.request.fields.remove(ACCEPT_ENCODING);
        }
        let fields = &call.exchange.request.fields;
        let compressible = call.has_body()
            && self.config.request.as_ref().is_some_and(|direction| {
                direction.enabled
                    && is_long_enough(direction, fields, &self.request)
                    && is_type_allowed(direction, fields)
                    && fields.get(CONTENT_ENCODING).is_none()
            });
        if !compressible {
            self.request.not_compressed.inc();
            return Verdict::Continue;
        }
        self.request.compressed.inc();
        let coding = self.config.library.coding().as_bytes();
        call.exchange.request.fields.push(CONTENT_ENCODING, coding);
        call.change_request(Box::new(Compress::new(self.config.library, self.request.bytes.clone())));
        Verdict::Continue
    }

    fn on_response(&self, call: &mut Call<'_>, accepted: &mut Self::State) {
        let route = call.route_configs::<Self>();
        let direction = &self.config.response;
        let fields = &call.exchange.response.fields;
        let length = call.response_length();
        let possible = self.is_enabled(route.first()) && is_long_enough(direction, fields, &self.response);
        let compressible = possible
            && length != BodyLength::Tunnel
            && !self.config.uncompressible.contains(&call.exchange.response.status)
            && is_type_allowed(direction, fields)
            && !no_transform(fields)
            && self.is_etag_allowed(fields)
            && fields.get(CONTENT_ENCODING).is_none();
        let wanted =
            !matches!(length, BodyLength::Empty | BodyLength::Tunnel) && possible && self.is_wanted(call, accepted);
        if wanted && compressible {
            self.response.compressed.inc();
            let fields = &mut call.exchange.response.fields;
            self.change_etag(fields);
            fields.push(CONTENT_ENCODING, self.config.library.coding().as_bytes());
            call.change_response(Box::new(Compress::new(
                self.config.library,
                self.response.bytes.clone(),
            )));
        } else {
            self.response.not_compressed.inc();
        }
        if compressible {
            // Whoever keeps the answer must know that another client may get another form of it.
            add_vary(&mut call.exchange.response.fields);
        }
    }
}

impl Compressor {
    fn is_enabled(&self, route: Option<&CompressorPerRoute>) -> bool {
        route.and_then(|r| r.enabled).unwrap_or(self.config.response.enabled)
    }

    fn is_etag_allowed(&self, fields: &Fields) -> bool {
        let refused = self.config.disable_on_etag && !self.config.weaken_etag && fields.get(b"etag").is_some();
        if refused {
            self.not_compressed_etag.inc();
        }
        !refused
    }

    /// A strong tag names the bytes as they were (RFC 9110 section 8.8.1).
    fn change_etag(&self, fields: &mut Fields) {
        let Some(etag) = fields.get(b"etag") else { return };
        if etag.len() >= 2 && !etag.starts_with(b"W/") && !etag.starts_with(b"w/") {
            let weak = [b"W/", etag].concat();
            fields.remove(b"etag");
            if self.config.weaken_etag {
                fields.push(b"etag", &weak);
            }
        }
    }

    /// Whether this filter is the one that the client likes best.
    fn is_wanted(&self, call: &Call<'_>, accepted: &Option<Box<str>>) -> bool {
        let Some(accepted) = accepted else {
            self.no_accept_header.inc();
            return false;
        };
        let filters = call.env.hcm.filters.iter().enumerate();
        let offers = filters.filter_map(|(number, filter)| match filter {
            Filter::Compressor(filter) if !is_off(call.exchange, number) => {
                let media = media_type(&call.exchange.response.fields);
                let types = &filter.config.response.content_types;
                let concerned = media.is_empty() || types.iter().any(|t| t.matches(&media));
                concerned.then(|| Offer {
                    coding: filter.config.library.coding(),
                    choose_first: filter.config.choose_first,
                })
            }
            _ => None,
        });
        let choice = choose(accepted, offers);
        let counter = match choice {
            Choice::Coding(coding) if coding == self.config.library.coding() => &self.header_used,
            Choice::Coding(_) => &self.header_overshadowed,
            Choice::Any(_) => &self.header_wildcard,
            Choice::Identity => &self.header_identity,
            Choice::Nothing => &self.header_not_valid,
        };
        counter.inc();
        matches!(choice, Choice::Coding(coding) | Choice::Any(coding) if coding == self.config.library.coding())
    }
}

fn is_long_enough(direction: &Direction, fields: &Fields, stats: &DirectionStats) -> bool {
    let Some(length) = fields.get_known(Known::ContentLength) else {
        return true;
    };
    let length = std::str::from_utf8(length).ok().and_then(|l| l.parse::<u64>().ok());
    let enough = length.is_some_and(|l| l >= direction.min_content_length);
    if !enough {
        stats.too_small.inc();
    }
    enough
}

fn is_type_allowed(direction: &Direction, fields: &Fields) -> bool {
    if !fields.has_known(Known::ContentType) {
        return true;
    }
    let media = media_type(fields);
    direction.content_types.iter().any(|t| t.matches(&media))
}

fn add_vary(fields: &mut Fields) {
    const NAME: &str = "Accept-Encoding";
    match fields.joined(b"vary") {
        None => fields.push(b"vary", NAME.as_bytes()),
        Some(vary) => {
            if !vary.split(',').any(|token| token.trim() == NAME) {
                let both = format!("{vary}, {NAME}");
                fields.set(b"vary", both.as_bytes());
            }
        }
    }
}

/// A coding that a filter has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offer {
    coding: &'static str,
    choose_first: bool,
}

/// What a client likes best of what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    /// It names this one.
    Coding(&'static str),
    /// It takes any, so it is the first.
    Any(&'static str),
    /// It wants none.
    Identity,
    /// It can take none.
    Nothing,
}

/// Reads `accept-encoding` (RFC 9110 section 12.5.3) as Envoy does: the greatest weight counts, and of equal ones the first
/// in the field, unless a filter says that it is to be chosen first.
fn choose(accepted: &str, offers: impl Iterator<Item = Offer>) -> Choice {
    let mut allowed: Vec<Offer> = Vec::new();
    for offer in offers {
        if !allowed.iter().any(|o| o.coding == offer.coding) {
            allowed.push(offer);
        }
    }
    let mut pairs = Vec::new();
    for token in accepted.split(',').filter(|t| !t.is_empty()) {
        let (name, parameter) = token.split_once(';').unwrap_or((token, ""));
        let weight = match parameter.split_once('=') {
            Some((q, weight)) if q.trim().eq_ignore_ascii_case("q") => match weight.trim().parse::<f32>() {
                Ok(weight) => weight,
                Err(_) => continue,
            },
            _ => 1.0,
        };
        let name = name.trim();
        pairs.push((name, weight));
        if weight == 0.0 {
            allowed.retain(|o| o.coding != name);
        }
    }
    let Some(first) = allowed.first() else {
        return Choice::Nothing;
    };
    let (mut choice, mut best) = (Choice::Nothing, 0.0);
    for (name, weight) in pairs {
        let offer = allowed.iter().find(|o| o.coding == name);
        let candidate = match (name, offer) {
            (_, Some(offer)) => Choice::Coding(offer.coding),
            ("identity", None) => Choice::Identity,
            ("*", None) => Choice::Any(first.coding),
            _ => continue,
        };
        if weight > best || (weight == best && offer.is_some_and(|o| o.choose_first)) {
            (choice, best) = (candidate, weight);
        }
    }
    choice
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(accepted: &str, offers: &[(&'static str, bool)]) -> Choice {
        let offers = offers.iter().map(|(coding, choose_first)| Offer {
            coding,
            choose_first: *choose_first,
        });
        choose(accepted, offers)
    }

    #[test]
    fn the_client_chooses() {
        let two = &[("gzip", false), ("br", false)];
        let table = [
            ("gzip", Choice::Coding("gzip")),
            ("br, gzip", Choice::Coding("br")),
            ("gzip;q=0.5, br;q=0.6", Choice::Coding("br")),
            ("gzip ; q = 0.5 , br;Q=0.6", Choice::Coding("br")),
            ("deflate, br;q=0.1", Choice::Coding("br")),
            ("*", Choice::Any("gzip")),
            ("gzip;q=0, *", Choice::Any("br")),
            ("*;q=0.5, br;q=0.1", Choice::Any("gzip")),
            ("identity, gzip", Choice::Identity),
            ("identity;q=0.5, gzip", Choice::Coding("gzip")),
            ("gzip;q=0, br;q=0", Choice::Nothing),
            ("gzip;q=0", Choice::Nothing),
            ("deflate", Choice::Nothing),
            ("", Choice::Nothing),
            (",,", Choice::Nothing),
            ("gzip;q=x", Choice::Nothing),
            ("gzip;q=-1", Choice::Nothing),
            ("GZIP", Choice::Nothing),
            ("gzip;level=1", Choice::Coding("gzip")),
        ];
        for (accepted, wanted) in table {
            assert_eq!(of(accepted, two), wanted, "{accepted}");
        }
        assert_eq!(of("gzip", &[]), Choice::Nothing);
    }

    #[test]
    fn filters_may_want_to_be_first() {
        assert_eq!(of("gzip, br", &[("gzip", false), ("br", true)]), Choice::Coding("br"));
        assert_eq!(of("gzip, br", &[("gzip", true), ("br", true)]), Choice::Coding("br"));
        assert_eq!(
            of("gzip, br;q=0.9", &[("gzip", false), ("br", true)]),
            Choice::Coding("gzip")
        );
        assert_eq!(
            of("identity, br", &[("gzip", false), ("br", true)]),
            Choice::Coding("br")
        );
    }

    #[test]
    fn tags_and_vary() {
        let mut fields = Fields::new();
        add_vary(&mut fields);
        add_vary(&mut fields);
        assert_eq!(fields.joined(b"vary").as_deref(), Some("Accept-Encoding"));
        fields.clear();
        fields.push(b"vary", b"origin");
        fields.push(b"vary", b"x-a");
        add_vary(&mut fields);
        assert_eq!(fields.joined(b"vary").as_deref(), Some("origin,x-a, Accept-Encoding"));
    }
}
