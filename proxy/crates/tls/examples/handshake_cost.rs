//! What a handshake costs when the private key is used directly, and when it goes through the asynchronous method of a
//! provider that completes at once.
//!
//!     cargo run --release -p heddle-tls --features testing --example handshake_cost [handshakes]
//!
//! Both sides run on one thread; the difference between the lines is the price of the asynchronous path.

use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use heddle_keys::{FakeProvider, SoftwareProvider};
use heddle_net::ConnectionInfo;
use heddle_tls::testing::{Authority, Leaf};
use heddle_tls::{ClientContext, ClientParams, ServerContext, ServerParams};
use tokio::net::{TcpListener, TcpStream};

type Failure = Box<dyn std::error::Error>;

async fn measure(name: &str, params: &ServerParams, count: u32) -> Result<(), Failure> {
    let server = ServerContext::new(params)?;
    let client = ClientContext::new(&ClientParams::default())?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let begun = Instant::now();
    for _ in 0..count {
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (near, (far, peer)) = (near?, far?);
        let mut info = ConnectionInfo::plain(address, peer);
        let (accepted, dialled) = tokio::join!(
            server.accept(far, BytesMut::new(), &mut info),
            client.connect(near, None, None)
        );
        accepted?;
        dialled?;
    }
    println!(
        "{name}: {:.1} µs per handshake, both sides",
        begun.elapsed().as_secs_f64() * 1e6 / f64::from(count)
    );
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let count = std::env::args().nth(1).map_or(Ok(2000), |n| n.parse())?;
    let root = Authority::root("root");
    let direct = root.issue(&Leaf {
        dns: &["shop.example"],
        ..Leaf::default()
    });
    let (provider, control) = FakeProvider::new(SoftwareProvider::from_pem(&direct.key_pem)?);
    control.complete_at_once();
    let mut through = direct.clone();
    through.provider = Some(Arc::new(provider));
    let params = |pair| ServerParams {
        certificates: vec![pair],
        ..ServerParams::default()
    };
    for _ in 0..3 {
        measure("direct key  ", &params(direct.clone()), count).await?;
        measure("asynchronous", &params(through.clone()), count).await?;
    }
    Ok(())
}
