//! The TLS inspector: server name and protocols of a client that has proved nothing yet.
#![no_main]

use heddle_fuzz::{PIECES, arrivals};
use heddle_net::{ClientHelloInspector, Inspection, MAX_CLIENT_HELLO};
use libfuzzer_sys::fuzz_target;

fn inspect(bytes: &[u8], piece: usize) -> Inspection {
    let mut inspector = ClientHelloInspector::new();
    for end in arrivals(bytes.len(), piece) {
        match inspector.inspect(&bytes[..end]) {
            Inspection::NeedMore => {}
            found => return found,
        }
    }
    Inspection::NeedMore
}

fuzz_target!(|bytes: &[u8]| {
    let whole = inspect(bytes, usize::MAX);
    for piece in PIECES {
        assert_eq!(inspect(bytes, piece), whole, "pieces of {piece}");
    }
    match whole {
        Inspection::NeedMore => assert!(bytes.len() < MAX_CLIENT_HELLO, "waits for ever"),
        Inspection::Tls(hello) => {
            if let Some(name) = hello.server_name {
                assert!(!name.is_empty() && name.len() <= 255);
                assert!(
                    name.bytes().all(|b| b.is_ascii_graphic() && !b.is_ascii_uppercase()),
                    "{name:?}"
                );
            }
            assert!(hello.alpn.iter().all(|p| !p.is_empty() && p.len() <= 255));
            assert!(hello.alpn.iter().map(|p| p.len() + 1).sum::<usize>() <= bytes.len());
        }
        Inspection::NotTls | Inspection::TooLarge => {}
    }
});
