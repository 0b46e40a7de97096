//! A process whose bootstrap asks for Hyperscan: rules and routes are what the expressions say, and what a client makes dear is
//! the portable engine's and counted.

mod harness;

use std::io::{Read, Write};
use std::net::TcpStream;

use harness::*;

const FIXTURE: &str = include_str!("../../../test/fixtures/envoy-hyperscan.yaml");
const HANDED_OVER: &str = "heddle_regex_hyperscan_handed_over_total{";
const SCANNED: &str = "heddle_regex_hyperscan_scans_total";

/// The status of the answer to a request with a cookie.
fn status(port: u16, path: &str, cookie: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let request = format!("GET {path} HTTP/1.1\r\nhost: shop\r\ncookie: {cookie}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer.split(' ').nth(1).unwrap_or_default().to_owned()
}

#[test]
fn hyperscan_finds_the_expressions_of_rules_and_routes() {
    let (admin, port) = (free_port(), free_port());
    let config = FIXTURE.replace("port_value: 8080", &format!("port_value: {port}"))
        + &format!("admin: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {admin} }} }} }}\n");
    let mut proxy = Proxy::start(&config, admin);
    proxy.wait_for("LIVE");
    let hostile = "malform".repeat(400);
    for (path, cookie, expected) in [
        ("/", "a=1", "404"),
        ("/", "a=malformed request", "403"),
        ("/", "malform req", "403"),
        ("/", "malformreq", "404"),
        ("/", "session=0a", "403"),
        ("/", "session=", "404"),
        ("/", hostile.as_str(), "404"),
        ("/", &format!("{hostile} req"), "403"),
        // Nobody listens at the route's endpoint.
        ("/echo/12/x", "a=1", "503"),
        ("/echo/x", "a=1", "404"),
    ] {
        assert_eq!(status(port, path, cookie), expected, "{path} {cookie}");
    }
    // Workers add up now and then.
    wait_until("two texts are counted", || counter(admin, HANDED_OVER) == 2);
    assert!(counter(admin, SCANNED) > 0, "Hyperscan has read some");
}

/// Where an expression stands that Hyperscan is not given is said, and the configuration is taken.
#[test]
fn what_hyperscan_is_not_given_is_said_with_its_place() {
    let config = FIXTURE.replace(".*session=[0-9a-f]+.*", r"x\\by[a-z]+z|[a-z]{2}");
    assert_ne!(config, FIXTURE);
    let (code, said) = output(&config, &["--mode", "validate", "-l", "info"]);
    assert_eq!(code, Some(0), "{said}");
    let line = said
        .lines()
        .find(|line| line.contains("Hyperscan is not given"))
        .unwrap_or(&said);
    assert!(line.contains("listeners[") && line.contains(".rules"), "{line}");
}
