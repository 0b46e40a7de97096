//! Where tokens are in requests.

use std::collections::BTreeMap;

use heddle_api::envoy::extensions::filters::http::jwt_authn::v3 as pb;

/// Where the tokens of one or several providers may be, and the fields that only the filter may write.
#[derive(Debug, Default)]
pub struct Extractor {
    /// Headers, then query parameters, then cookies, each by name.
    pub locations: Vec<Location>,
    /// Fields that are removed from every request first, lower case: those that verified tokens fill.
    pub sanitize: Vec<Box<str>>,
}

/// A place in a request.
#[derive(Debug)]
pub struct Location {
    /// The place.
    pub place: Place,
    /// The issuers whose tokens may be there; none means any.
    pub issuers: Option<Vec<Box<str>>>,
}

/// Where a token is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// `from_headers`: a field, and what stands before the token in it.
    Header {
        /// Lower case.
        name: Box<str>,
        /// `value_prefix`.
        prefix: Box<str>,
    },
    /// `from_params`.
    Parameter(Box<str>),
    /// `from_cookies`.
    Cookie(Box<str>),
}

impl Extractor {
    /// Of providers that a requirement speaks of.
    pub(super) fn new(providers: &[&pb::JwtProvider]) -> Self {
        let mut places: BTreeMap<Place, Option<Vec<Box<str>>>> = BTreeMap::new();
        let mut sanitize: Vec<Box<str>> = Vec::new();
        for provider in providers {
            for place in places_of(provider) {
                let issuers = places.entry(place).or_insert_with(|| Some(Vec::new()));
                match issuers {
                    // A provider of any issuer opens the place to all.
                    _ if provider.issuer.is_empty() => *issuers = None,
                    Some(issuers) => issuers.push(provider.issuer.as_str().into()),
                    None => {}
                }
            }
            let claims = provider.claim_to_headers.iter().map(|c| &c.header_name);
            for name in std::iter::once(&provider.forward_payload_header).chain(claims) {
                let name: Box<str> = name.to_ascii_lowercase().into();
                if !name.is_empty() && !sanitize.contains(&name) {
                    sanitize.push(name);
                }
            }
        }
        let places = places.into_iter();
        Self {
            locations: places.map(|(place, issuers)| Location { place, issuers }).collect(),
            sanitize,
        }
    }
}

/// A provider's places; by default those of RFC 6750 sections 2.1 and 2.3.
fn places_of(provider: &pb::JwtProvider) -> Vec<Place> {
    let header = |name: &str, prefix: &str| Place::Header {
        name: name.to_ascii_lowercase().into(),
        prefix: prefix.into(),
    };
    let headers = provider.from_headers.iter().map(|h| header(&h.name, &h.value_prefix));
    let parameters = provider.from_params.iter().map(|p| Place::Parameter(p.as_str().into()));
    let cookies = provider.from_cookies.iter().map(|c| Place::Cookie(c.as_str().into()));
    let places: Vec<_> = headers.chain(parameters).chain(cookies).collect();
    if places.is_empty() {
        return vec![
            header("authorization", "Bearer "),
            Place::Parameter("access_token".into()),
        ];
    }
    places
}
