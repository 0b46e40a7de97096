//! HPACK's decoder beside the one of the `h2` crate: the same fields, the same errors, the same table from block to block.
#![no_main]

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use heddle_http::parse::HpackDecoder;
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// Blocks of one connection. More reset streams than a few would end it for another reason.
const BLOCKS: usize = 8;

/// GET, http, / and an authority, none of which changes the table.
const REQUEST: &[u8] = &[0x82, 0x86, 0x84, 0x01, 0x01, b'h'];

/// A connection that sends these bytes and then nothing, and takes everything. At an end, the crate would drop what it has
/// not shown yet.
struct Script<'a>(&'a [u8]);

impl AsyncRead for Script<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.0.is_empty() {
            return Poll::Pending;
        }
        let (now, later) = self.0.split_at(out.remaining().min(self.0.len()));
        out.put_slice(now);
        self.0 = later;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Script<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// What a server of the `h2` crate accepts, and whether it called the rest an error.
fn reference(blocks: &[Vec<u8>]) -> (Vec<Fields>, bool) {
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    for (stream, block) in (1_u32..).step_by(2).zip(blocks) {
        let length = u32::try_from(block.len()).expect("short");
        sent.extend_from_slice(&length.to_be_bytes()[1..]);
        // HEADERS with END_HEADERS and END_STREAM.
        sent.extend_from_slice(&[0x01, 0x05]);
        sent.extend_from_slice(&stream.to_be_bytes());
        sent.extend_from_slice(block);
    }
    let mut cx = Context::from_waker(Waker::noop());
    let mut accepted = Vec::new();
    let Poll::Ready(Ok(mut connection)) = pin!(h2::server::handshake(Script(&sent))).poll(&mut cx) else {
        panic!("nothing to wait for, and nothing wrong with the beginning");
    };
    // Requests stay open until all have come: the crate counts those that are given up.
    let mut replies = Vec::new();
    let failed = loop {
        match connection.poll_accept(&mut cx) {
            Poll::Ready(Some(Ok((request, reply)))) => {
                let fields = request.headers().iter();
                accepted.push(sorted(
                    fields.map(|(n, v)| (n.as_str().into(), v.as_bytes().into())).collect(),
                ));
                replies.push((request, reply));
            }
            Poll::Ready(Some(Err(_))) => break true,
            Poll::Ready(None) => panic!("nobody has closed the connection"),
            Poll::Pending => break false,
        }
    };
    (accepted, failed)
}

/// By name; the order of one name's values stays.
fn sorted(mut fields: Fields) -> Fields {
    fields.sort_by(|(a, _), (b, _)| a.cmp(b));
    fields
}

/// Whether HTTP/2 refuses the request for this field, however it is written (RFC 9113 section 8.2.2).
fn is_malformed(name: &[u8], value: &[u8]) -> bool {
    match name {
        b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => true,
        b"te" => value != b"trailers",
        _ => false,
    }
}

fuzz_target!(|bytes: &[u8]| {
    // 0xff is a rare first byte and divides the blocks. A block's first byte may ask for a table of another size.
    let parts = bytes.split(|b| *b == 0xff).take(BLOCKS);
    let blocks: Vec<Vec<u8>> = parts
        .map(|part| match part {
            [size @ 0x20..=0x3e, rest @ ..] => [&[*size], REQUEST, rest].concat(),
            rest => [REQUEST, rest].concat(),
        })
        .collect();
    let mut decoder = HpackDecoder::new(4096);
    let (mut expected, mut failed) = (Vec::new(), false);
    for block in &blocks {
        decoder.begin();
        let (mut fields, mut refused) = (Vec::new(), false);
        let decoded = decoder.decode(block, |field| {
            // Which error an invalid name or value is, or a pseudo-header field among the others, and a length that there is
            // no body for, are no matter of HPACK.
            refused |=
                !field.valid || field.name == b"content-length" || field.name.starts_with(b":") && fields.len() >= 4;
            fields.push((field.name.to_vec(), field.value.to_vec()));
        });
        if refused {
            return;
        }
        if decoded != Ok(block.len()) {
            failed = true;
            break;
        }
        // The four of the request itself.
        let fields = fields.split_off(4);
        if !fields.iter().any(|(name, value)| is_malformed(name, value)) {
            expected.push(sorted(fields));
        }
    }
    let (mut accepted, theirs) = reference(&blocks);
    if theirs && expected.starts_with(&accepted) {
        // With an error, the crate drops what it has not shown yet.
        accepted.clone_from(&expected);
    }
    assert_eq!((accepted, theirs), (expected, failed), "{blocks:02x?}");
});
