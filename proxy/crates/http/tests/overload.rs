//! Load that is shed where HTTP begins.

mod harness;

use harness::*;
use heddle_config::snapshot::*;
use heddle_http::OverloadStates;
use tokio::net::TcpStream;

/// A proxy that sheds all that comes to a point.
async fn shedding(point: LoadShedPoint) -> Proxy {
    let (up, _) = echo().await;
    let proxy = Proxy::start(manager(to("c")), vec![(cluster("c", UpstreamHttp::Http1), vec![up])]).await;
    let mut states = OverloadStates::default();
    states.shed(point, 1.0);
    proxy.overload.set(states);
    proxy
}

fn shed(proxy: &Proxy, name: &str) -> i64 {
    proxy.metric(
        &format!("envoy_overload_envoy_load_shed_points_{name}_shed_load_count"),
        "",
    )
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const OVERLOAD_CLOSE: &str = "envoy_http_downstream_rq_overload_close";

#[test]
fn requests_are_shed() {
    run(async {
        let proxy = shedding(LoadShedPoint::DecodeHeaders).await;
        let mut client = proxy.connect().await;
        for _ in 0..2 {
            client.send(GET).await;
            let answer = client.answer().await.expect("an answer");
            assert_eq!((answer.status, answer.text().as_str()), (503, "envoy overloaded"));
        }
        assert_eq!(shed(&proxy, "http_connection_manager_decode_headers"), 2);
        assert_eq!(proxy.metric(OVERLOAD_CLOSE, ""), 2);
        proxy.overload.set(OverloadStates::default());
        client.send(GET).await;
        assert_eq!(client.answer().await.expect("an answer").status, 200);
    });
}

#[test]
fn http1_is_not_read() {
    run(async {
        let proxy = shedding(LoadShedPoint::Http1AbortDispatch).await;
        let mut client = proxy.connect().await;
        client.send(GET).await;
        let answer = client.answer().await.expect("an answer");
        assert_eq!((answer.status, answer.text().as_str()), (500, "Internal Server Error"));
        assert_eq!(answer.header("connection"), Some("close"));
        assert!(client.rest().await.is_empty());
        assert_eq!(shed(&proxy, "http1_server_abort_dispatch"), 1);
        assert_eq!(proxy.metric(OVERLOAD_CLOSE, ""), 1);
    });
}

#[test]
fn connections_get_no_codec() {
    run(async {
        let proxy = shedding(LoadShedPoint::CreatingCodec).await;
        let mut client = proxy.connect().await;
        client.send(GET).await;
        assert!(client.rest().await.is_empty());
        assert_eq!(shed(&proxy, "hcm_ondata_creating_codec"), 1);
    });
}

/// What was asked is answered, and the client told to go elsewhere.
#[test]
fn http2_connections_end() {
    run(async {
        let proxy = shedding(LoadShedPoint::Http2GoAway).await;
        let tcp = TcpStream::connect(proxy.address).await.expect("connect");
        let (mut send, driver) = h2::client::handshake(tcp).await.expect("handshake");
        let driver = tokio::task::spawn_local(driver);
        let request = http::Request::get("http://shop/").body(()).expect("a request");
        let (answer, _) = send.send_request(request, true).expect("a stream");
        let answer = answer.await.expect("an answer");
        assert_eq!(answer.status(), 200);
        drop(answer);
        drop(send);
        driver.await.expect("no panic").expect("it ends well");
        assert_eq!(shed(&proxy, "http2_server_go_away_on_dispatch"), 1);
        // The first announces it, so that no request on its way is lost; the second names the last stream.
        assert_eq!(proxy.metric("envoy_http2_goaway_sent", ""), 2);
    });
}
