//! `/certs`: the certificates of all TLS contexts, roots included.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use heddle_config::snapshot::Snapshot;
use heddle_telemetry::access_log::rfc3339;
use heddle_tls::CertificateInfo;
use serde_json::{Value, json};

use super::reply::Reply;
use super::route::Query;
use super::state::AdminState;

/// Seconds of a day.
const DAY: i64 = 86_400;

pub(super) fn certs(state: &AdminState, _: &Query<'_>) -> Reply {
    let snapshot = state.snapshot.borrow();
    let now = now();
    let mut entries: Vec<_> = contexts(&snapshot).collect();
    entries.sort_by(|a, b| a.0.cmp(b.0));
    let certificates: Vec<_> = entries
        .iter()
        .map(|(name, served, trusted)| {
            let of = |list: &[CertificateInfo]| list.iter().map(|c| certificate(c, now)).collect::<Vec<_>>();
            json!({"context": name, "ca_cert": of(trusted), "cert_chain": of(served)})
        })
        .collect();
    Reply::json(&json!({"certificates": certificates}))
}

/// Days until the first certificate in use expires; none when there is none. Negative once it has.
pub(super) fn days_until_first_expires(snapshot: &Snapshot) -> Option<i64> {
    let now = now();
    contexts(snapshot)
        .flat_map(|(_, served, _)| served)
        .map(|c| (c.not_after - now).div_euclid(DAY))
        .min()
}

type Context<'s> = (&'s str, &'s [CertificateInfo], &'s [CertificateInfo]);

fn contexts(snapshot: &Snapshot) -> impl Iterator<Item = Context<'_>> {
    let server = snapshot
        .server_tls
        .iter()
        .map(|(name, c)| (&**name, c.certificates(), c.trusted()));
    let client = snapshot
        .client_tls
        .iter()
        .map(|(name, c)| (&**name, c.certificates(), c.trusted()));
    server.chain(client)
}

fn now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX))
}

fn certificate(info: &CertificateInfo, now: i64) -> Value {
    let at = |seconds: i64| rfc3339(UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
    let uris = info.uri_sans.iter().map(|san| json!({"uri": san}));
    let names = info.dns_sans.iter().map(|san| json!({"dns": san}));
    let addresses = info.ip_sans.iter().map(|san| json!({"ip_address": san}));
    json!({
        "path": "<inline>",
        "serial_number": info.serial,
        "subject": info.subject,
        "issuer": info.issuer,
        "subject_alt_names": uris.chain(names).chain(addresses).collect::<Vec<_>>(),
        // Envoy's is unsigned: an expired certificate shows zero.
        "days_until_expiration": (info.not_after - now).div_euclid(DAY).max(0).to_string(),
        "valid_from": at(info.not_before),
        "expiration_time": at(info.not_after),
    })
}
