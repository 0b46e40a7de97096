//! Tokens that requests must have: what conformance cases cannot show, because Envoy does otherwise or has no bound.

mod harness;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use boring::hash::hmac_sha256;
use harness::*;
use heddle_config::filters::jwt_authn::{
    Allow, Expiration, Extractor, JwtAuthn, Keys, Location, Place, Provider, RemoteJwks, Requirement, Rule,
    RuleRequirement,
};
use heddle_config::snapshot::*;
use heddle_jwt::{Audiences, KeySet};
use heddle_matching::{MetadataMatcher, StringMatcher, ValueMatcher};
use tokio::sync::Notify;

const SECRET: &[u8] = b"known to issuers";

fn token(claims: &str) -> String {
    let text = format!(
        "{}.{}",
        URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256"}"#),
        URL_SAFE_NO_PAD.encode(claims)
    );
    let mac = hmac_sha256(SECRET, text.as_bytes()).expect("a mac");
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(mac))
}

fn key_set() -> String {
    let secret = URL_SAFE_NO_PAD.encode(SECRET);
    format!(r#"{{"keys":[{{"kty":"oct","k":"{secret}"}}]}}"#)
}

/// A provider whose tokens are in the field of its name.
fn provider(name: &str) -> Provider {
    let written: Box<str> = format!("x-{name}-sub").into();
    Provider {
        name: name.into(),
        issuer: name.into(),
        audiences: Audiences::default(),
        subjects: None,
        expiration: Expiration::Optional,
        keys: Keys::Local(Arc::new(KeySet::parse(key_set().as_bytes()).expect("keys"))),
        extractor: Extractor {
            locations: vec![Location {
                place: Place::Header {
                    name: name.into(),
                    prefix: "".into(),
                },
                issuers: Some(vec![name.into()]),
            }],
            sanitize: vec![written.clone()],
        },
        forward: false,
        payload_header: None,
        pad_payload_header: false,
        payload_in_metadata: Some("payload".into()),
        space_delimited_claims: vec![],
        header_in_metadata: None,
        clock_skew: 60,
        claim_to_headers: vec![(vec!["sub".into()], written)],
        clear_route_cache: true,
        cache: Some((1, 4096)),
    }
}

/// A token of this provider or of another one, or none.
fn either(one: Provider) -> HttpFilter {
    let of = |provider| Requirement::Provider {
        provider,
        audiences: None,
    };
    let requirement = Requirement::Any {
        of: vec![of(0), of(1)],
        allow: Allow::Missing,
    };
    asking(one, "/", requirement)
}

/// What is asked below a prefix, by tokens of this provider and another one.
fn asking(one: Provider, prefix: &str, requirement: Requirement) -> HttpFilter {
    let providers = vec![one, provider("two")];
    let sanitize = providers.iter().flat_map(|p| p.extractor.sanitize.clone()).collect();
    let config = JwtAuthn {
        providers,
        everywhere: Extractor {
            locations: vec![],
            sanitize,
        },
        rules: vec![Rule {
            matches: route(prefix, Action::Route(Box::new(route_action("c")))).matches,
            requires: RuleRequirement::Own(requirement),
        }],
        bypass_cors_preflight: true,
        ..JwtAuthn::default()
    };
    filter("jwt", FilterConfig::JwtAuthn(Arc::new(config)))
}

async fn proxy(routes: RouteTable) -> (Proxy, Log) {
    let (up, log) = echo().await;
    let mut manager = manager(routes);
    manager.filters = vec![either(provider("one"))];
    let clusters = vec![(cluster("c", UpstreamHttp::Http1), vec![up])];
    (Proxy::start(manager, clusters).await, log)
}

fn get(fields: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

/// The second provider is not asked when the first one's token is good; what its tokens fill is nobody else's all the same.
#[test]
fn a_good_token_does_not_let_forged_claims_in() {
    run(async {
        let (proxy, log) = proxy(to("c")).await;
        let good = token(r#"{"iss":"one","sub":"ann"}"#);
        for fields in [
            format!("one: {good}\r\nx-one-sub: eve\r\nx-two-sub: eve\r\n"),
            "x-one-sub: eve\r\nx-two-sub: eve\r\n".to_owned(),
        ] {
            assert_eq!(proxy.ask(&get(&fields)).await.status, 200);
        }
        let log = log.borrow();
        let seen: Vec<_> = log
            .iter()
            .map(|seen| (seen.header("x-one-sub"), seen.header("x-two-sub")))
            .collect();
        assert_eq!(seen, [(Some("ann"), None), (None, None)]);
        assert!(log.iter().all(|seen| seen.header("one").is_none()));
    });
}

/// Whatever is asked of a request: nothing of a preflight, nothing by a rule, nothing for want of a rule.
#[test]
fn claims_cannot_be_forged_where_no_token_is_asked_for() {
    run(async {
        let (up, log) = echo().await;
        let one = Requirement::Provider {
            provider: 0,
            audiences: None,
        };
        let forged = "x-one-sub: eve\r\nx_two_sub: eve\r\n\r\n";
        for (prefix, requirement, head) in [
            (
                "/",
                one.clone(),
                "OPTIONS / HTTP/1.1\r\nHost: a\r\nOrigin: o\r\nAccess-Control-Request-Method: GET\r\n",
            ),
            ("/", Requirement::Nothing, "GET / HTTP/1.1\r\nHost: a\r\n"),
            ("/other", one, "GET / HTTP/1.1\r\nHost: a\r\n"),
        ] {
            let mut manager = manager(to("c"));
            manager.filters = vec![asking(provider("one"), prefix, requirement)];
            let proxy = Proxy::start(manager, vec![(cluster("c", UpstreamHttp::Http1), vec![up])]).await;
            assert_eq!(proxy.ask(&format!("{head}{forged}")).await.status, 200);
        }
        let log = log.borrow();
        assert_eq!(log.len(), 3);
        for seen in log.iter() {
            assert_eq!(
                (seen.header("x-one-sub"), seen.header("x_two_sub")),
                (None, None),
                "{}",
                seen.line
            );
        }
    });
}

/// Whoever decides by claims would take the request for one without a token.
#[test]
fn claims_that_do_not_fit_are_refused() {
    run(async {
        let (proxy, log) = proxy(to("c")).await;
        let many = vec!["[]"; 4000].join(",");
        let large = token(&format!(r#"{{"iss":"one","a":[{many}]}}"#));
        let answer = proxy.ask(&get(&format!("one: {large}\r\n"))).await;
        assert_eq!(answer.status, 401);
        assert_eq!(proxy.metric("heddle_http_dynamic_metadata_overflow_total", ""), 1);
        let longer = token(&format!(r#"{{"iss":"one","a":"{}"}}"#, "x".repeat(30_000)));
        let answer = proxy.ask(&get(&format!("one: {longer}\r\n"))).await;
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (401, "Jwt is larger than 32768 bytes")
        );
        assert_eq!(proxy.metric("envoy_http_jwt_authn_denied", ""), 2);
        assert!(log.borrow().is_empty());
    });
}

#[test]
fn verified_tokens_are_kept_up_to_a_bound() {
    run(async {
        let (proxy, _) = proxy(to("c")).await;
        let tokens = ["ann", "bob"].map(|sub| token(&format!(r#"{{"iss":"one","sub":"{sub}"}}"#)));
        let counts = |proxy: &Proxy| {
            let count = |name: &str| proxy.metric(&format!("envoy_http_jwt_authn_jwt_cache_{name}"), "");
            (count("hit"), count("miss"))
        };
        for (token, hits, misses) in [(0, 0, 1), (0, 1, 1), (1, 1, 2), (0, 1, 3), (0, 2, 3)] {
            let fields = format!("one: {}\r\n", tokens[token]);
            assert_eq!(proxy.ask(&get(&fields)).await.status, 200);
            assert_eq!(counts(&proxy), (hits, misses));
        }
        // Kept for its provider only.
        let fields = format!("two: {}\r\n", tokens[0]);
        assert_eq!(proxy.ask(&get(&fields)).await.status, 401);
    });
}

#[test]
fn claims_choose_the_route() {
    run(async {
        let mut staff = route(
            "/",
            Action::Direct(DirectResponse {
                status: 218,
                body: "staff".into(),
            }),
        );
        let path = vec!["payload".into(), "group".into()];
        let wanted = ValueMatcher::String(StringMatcher::exact("staff"));
        staff.matches.metadata = vec![MetadataMatcher::new(
            "envoy.filters.http.jwt_authn",
            path,
            wanted,
            false,
        )];
        let others = route("/", Action::Route(Box::new(route_action("c"))));
        let (proxy, _) = proxy(table(vec![staff, others])).await;
        let ask = async |claims: &str| {
            let fields = format!("one: {}\r\n", token(claims));
            proxy.ask(&get(&fields)).await.status
        };
        assert_eq!(ask(r#"{"iss":"one","group":"staff"}"#).await, 218);
        assert_eq!(ask(r#"{"iss":"one","group":"guests"}"#).await, 200);
        assert_eq!(proxy.ask(&get("")).await.status, 200);
    });
}

fn remote(service: &str, cache_duration: Duration, refetch: Option<Duration>) -> Keys {
    Keys::Remote(Arc::new(RemoteJwks {
        service: HttpTarget {
            cluster: service.into(),
            host: "keys.example".into(),
            path: "/keys?all".into(),
            https: false,
            timeout: Duration::from_secs(10),
            retry: None,
        },
        cache_duration,
        refetch,
    }))
}

/// A proxy whose first provider's keys come from a server that answers with what it is told to.
async fn fetching(
    cache_duration: Duration,
    refetch: Option<Duration>,
) -> (Proxy, Rc<Notify>, Log, Rc<Cell<&'static str>>) {
    let (up, _) = echo().await;
    let log: Log = Rc::default();
    let may = Rc::new(Notify::new());
    let status = Rc::new(Cell::new("200 OK"));
    let shared = (Rc::clone(&log), Rc::clone(&may), Rc::clone(&status));
    let keys = server(move |mut client, _| {
        let (log, may, status) = shared.clone();
        async move {
            while let Some(seen) = client.request().await {
                log.borrow_mut().push(seen);
                may.notified().await;
                let set = key_set();
                let (status, length) = (status.get(), set.len());
                client
                    .send(&format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{set}"))
                    .await;
            }
        }
    })
    .await;
    let mut one = provider("one");
    one.keys = remote("keys", cache_duration, refetch);
    one.cache = None;
    let mut manager = manager(to("c"));
    manager.filters = vec![either(one)];
    let clusters = vec![
        (cluster("c", UpstreamHttp::Http1), vec![up]),
        (cluster("keys", UpstreamHttp::Http1), vec![keys]),
    ];
    (Proxy::start(manager, clusters).await, may, log, status)
}

const HOUR: Duration = Duration::from_secs(3600);
const FETCHED: &str = "envoy_http_jwt_authn_jwks_fetch_success";
const NOT_FETCHED: &str = "envoy_http_jwt_authn_jwks_fetch_failed";

#[test]
fn requests_wait_for_one_fetch() {
    run(async {
        let (proxy, may, log, _) = fetching(HOUR, None).await;
        let good = get(&format!("one: {}\r\n", token(r#"{"iss":"one"}"#)));
        let forged = get(&format!("one: {}x\r\n", token(r#"{"iss":"one"}"#)));
        let mut clients = Vec::new();
        for request in [&good, &good, &forged, &good] {
            let mut client = proxy.connect().await;
            client.send(request).await;
            clients.push(client);
        }
        // One of those who wait goes away, the one whose request began the fetch.
        proxy.until("envoy_http_downstream_rq_active", "", 4).await;
        drop(clients.remove(0));
        proxy.until("envoy_http_downstream_rq_active", "", 3).await;
        may.notify_one();
        let mut statuses = Vec::new();
        for client in &mut clients {
            statuses.push(client.answer().await.expect("an answer").status);
        }
        assert_eq!(statuses, [200, 401, 200]);
        assert_eq!(proxy.ask(&good).await.status, 200);
        let log = log.borrow();
        let seen: Vec<_> = log
            .iter()
            .map(|seen| (seen.line.as_str(), seen.header("host")))
            .collect();
        assert_eq!(seen, [("GET /keys?all HTTP/1.1", Some("keys.example"))]);
        assert_eq!(proxy.metric(FETCHED, ""), 1);
    });
}

/// Whoever sends tokens that no key could make good has none fetched.
#[test]
fn nothing_is_fetched_for_tokens_that_are_bad_anyway() {
    run(async {
        let (proxy, _, log, _) = fetching(HOUR, None).await;
        for claims in [
            r#"{"iss":"other"}"#,
            r#"{"iss":"one","exp":1}"#,
            r#"{"iss":"one","nbf":9999999999}"#,
        ] {
            let request = get(&format!("one: {}\r\n", token(claims)));
            assert_eq!(proxy.ask(&request).await.status, 401);
        }
        assert_eq!(proxy.ask(&get("one: a.b.c\r\n")).await.status, 401);
        assert_eq!(proxy.ask(&get("")).await.status, 200);
        assert!(log.borrow().is_empty());
    });
}

/// All who wait for a fetch that fails are refused; the next one has the keys fetched again.
#[test]
fn a_failure_is_not_remembered() {
    run(async {
        let (proxy, may, log, status) = fetching(HOUR, None).await;
        status.set("302 Found");
        let good = get(&format!("one: {}\r\n", token(r#"{"iss":"one"}"#)));
        let mut clients = [proxy.connect().await, proxy.connect().await];
        for client in &mut clients {
            client.send(&good).await;
        }
        proxy.until("envoy_http_downstream_rq_active", "", 2).await;
        may.notify_one();
        for client in &mut clients {
            let answer = client.answer().await.expect("an answer");
            assert_eq!(
                (answer.status, answer.text().as_str()),
                (401, "Jwks remote fetch is failed")
            );
        }
        assert_eq!((proxy.metric(FETCHED, ""), proxy.metric(NOT_FETCHED, "")), (0, 1));
        status.set("200 OK");
        may.notify_one();
        assert_eq!(proxy.ask(&good).await.status, 200);
        assert_eq!((proxy.metric(FETCHED, ""), proxy.metric(NOT_FETCHED, "")), (1, 1));
        assert_eq!(log.borrow().len(), 2);
    });
}

/// However short the keys' time is, the request that had them fetched may use them.
#[test]
fn keys_of_no_duration_serve_who_waited() {
    run(async {
        let (proxy, may, log, _) = fetching(Duration::from_nanos(1), None).await;
        let good = get(&format!("one: {}\r\n", token(r#"{"iss":"one"}"#)));
        for fetches in 1..=2 {
            may.notify_one();
            assert_eq!(proxy.ask(&good).await.status, 200);
            assert_eq!(log.borrow().len(), fetches);
        }
    });
}

#[test]
fn keys_are_fetched_ahead() {
    run(async {
        let (proxy, may, log, _) = fetching(HOUR, Some(HOUR)).await;
        may.notify_one();
        proxy.until(FETCHED, "", 1).await;
        let good = get(&format!("one: {}\r\n", token(r#"{"iss":"one"}"#)));
        assert_eq!(proxy.ask(&good).await.status, 200);
        assert_eq!(log.borrow().len(), 1);
    });
}

/// Keys that were fetched ahead stay while a server that has no others is asked again and again.
#[test]
fn keys_stay_good_while_others_are_fetched() {
    run(async {
        let nothing = Duration::from_nanos(1);
        let (proxy, may, log, status) = fetching(nothing, Some(nothing)).await;
        let good = get(&format!("one: {}\r\n", token(r#"{"iss":"one"}"#)));
        may.notify_one();
        proxy.until(FETCHED, "", 1).await;
        status.set("500 Internal Server Error");
        assert_eq!(proxy.ask(&good).await.status, 200);
        may.notify_one();
        proxy.until(NOT_FETCHED, "", 1).await;
        assert_eq!(proxy.ask(&good).await.status, 200);
        assert!(log.borrow().len() >= 2);
    });
}
