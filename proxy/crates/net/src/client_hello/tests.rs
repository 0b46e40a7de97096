use super::*;

fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
    let mut out = kind.to_be_bytes().to_vec();
    out.extend_from_slice(&(data.len() as u16).to_be_bytes());
    out.extend_from_slice(data);
    out
}

fn sni(name: &[u8]) -> Vec<u8> {
    let mut data = ((name.len() + 3) as u16).to_be_bytes().to_vec();
    data.push(0);
    data.extend_from_slice(&(name.len() as u16).to_be_bytes());
    data.extend_from_slice(name);
    extension(0, &data)
}

fn alpn(names: &[&[u8]]) -> Vec<u8> {
    let mut list = Vec::new();
    for name in names {
        list.push(name.len() as u8);
        list.extend_from_slice(name);
    }
    let mut data = (list.len() as u16).to_be_bytes().to_vec();
    data.extend_from_slice(&list);
    extension(16, &data)
}

fn message(extensions: &[Vec<u8>]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend_from_slice(&[7; 32]);
    body.push(0);
    body.extend_from_slice(&[0, 2, 0x13, 0x01, 1, 0]);
    let all = extensions.concat();
    body.extend_from_slice(&(all.len() as u16).to_be_bytes());
    body.extend_from_slice(&all);
    let mut out = vec![1];
    out.extend_from_slice(&(body.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&body);
    out
}

/// Puts a handshake message into records of the given payload sizes, the last one repeated.
fn records(message: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = message;
    let mut sizes = sizes.iter().copied();
    let mut size = usize::MAX;
    while !rest.is_empty() {
        size = sizes.next().unwrap_or(size);
        let n = size.min(rest.len()).min(MAX_RECORD);
        out.extend_from_slice(&[22, 3, 1]);
        out.extend_from_slice(&(n as u16).to_be_bytes());
        out.extend_from_slice(&rest[..n]);
        rest = &rest[n..];
    }
    out
}

fn whole(bytes: &[u8]) -> Inspection {
    ClientHelloInspector::new().inspect(bytes)
}

fn usual() -> Vec<u8> {
    message(&[
        extension(43, &[2, 3, 4]),
        sni(b"Outbound_.80_._.Cart.Shop"),
        alpn(&[b"istio", b"h2"]),
    ])
}

fn expected() -> Inspection {
    Inspection::Tls(ClientHello {
        server_name: Some("outbound_.80_._.cart.shop".into()),
        alpn: vec![b"istio".as_slice().into(), b"h2".as_slice().into()],
    })
}

#[test]
fn finds_name_and_protocols() {
    assert_eq!(whole(&records(&usual(), &[])), expected());
}

#[test]
fn without_extensions() {
    let mut body = vec![3, 3];
    body.extend_from_slice(&[0; 32]);
    body.extend_from_slice(&[0, 0, 2, 0xc0, 0x2f, 1, 0]);
    let mut hello = vec![1, 0, 0, body.len() as u8];
    hello.extend_from_slice(&body);
    assert_eq!(whole(&records(&hello, &[])), Inspection::Tls(ClientHello::default()));
}

#[test]
fn any_split_over_records_and_reads_gives_the_same() {
    let hello = usual();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move |bound: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % bound as u64) as usize
    };
    for _ in 0..500 {
        let sizes: Vec<usize> = (0..next(8) + 1).map(|_| next(40) + 1).collect();
        let bytes = records(&hello, &sizes);
        let mut inspector = ClientHelloInspector::new();
        let mut seen = 0;
        loop {
            seen = (seen + next(30) + 1).min(bytes.len());
            match inspector.inspect(&bytes[..seen]) {
                Inspection::NeedMore => {
                    assert!(seen < bytes.len(), "all bytes are there, sizes {sizes:?}")
                }
                found => {
                    assert_eq!(found, expected(), "sizes {sizes:?}");
                    break;
                }
            }
        }
    }
}

#[test]
fn plain_protocols_are_told_apart_at_the_first_byte() {
    assert_eq!(whole(b"G"), Inspection::NotTls);
    assert_eq!(whole(b"PRI * HTTP/2.0\r\n"), Inspection::NotTls);
    assert_eq!(whole(&[22, 2]), Inspection::NotTls);
    assert_eq!(whole(&[]), Inspection::NeedMore);
    assert_eq!(whole(&[22]), Inspection::NeedMore);
    assert_eq!(whole(&[22, 3, 1, 0]), Inspection::NeedMore);
}

#[test]
fn broken_hellos_are_not_tls() {
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("empty record", vec![22, 3, 1, 0, 0]),
        ("oversized record", vec![22, 3, 1, 0x40, 0x01]),
        ("other handshake message", records(&[2, 0, 0, 0], &[])),
        ("two names", records(&message(&[sni(b"a.b"), sni(b"c.d")]), &[])),
        ("control byte in the name", records(&message(&[sni(b"a\nb")]), &[])),
        ("zero byte in the name", records(&message(&[sni(b"a\0b")]), &[])),
        ("empty name", records(&message(&[sni(b"")]), &[])),
        ("name too long", records(&message(&[sni(&[b'a'; 256])]), &[])),
        ("empty protocol", records(&message(&[alpn(&[b""])]), &[])),
        ("no protocols", records(&message(&[alpn(&[])]), &[])),
        ("extension longer than the message", {
            let mut hello = usual();
            let at = hello.len() - 1;
            hello.truncate(at);
            hello[3] -= 1;
            records(&hello, &[])
        }),
    ];
    for (name, bytes) in cases {
        assert_eq!(whole(&bytes), Inspection::NotTls, "{name}");
    }
}

#[test]
fn size_is_bounded() {
    // Claims more than the bound.
    assert_eq!(whole(&records(&[1, 0x02, 0, 0], &[])), Inspection::TooLarge);
    // Is complete only beyond the bound, and comes in one read.
    let large = records(&message(&[extension(21, &vec![0; 65_000]), sni(b"a.b")]), &[64]);
    assert!(large.len() > MAX_CLIENT_HELLO);
    assert_eq!(whole(&large), Inspection::TooLarge);
    // Never ends.
    let mut endless = message(&[extension(21, &vec![0; 65_000])]);
    endless[1] = 0;
    endless[2] = 0xff;
    endless[3] = 0xff;
    let mut bytes = records(&endless, &[16]);
    bytes.truncate(MAX_CLIENT_HELLO);
    assert_eq!(whole(&bytes), Inspection::TooLarge);
}

#[test]
fn random_bytes_never_panic() {
    let mut random = 88_172_645_463_325_252_u64;
    let mut byte = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as u8
    };
    for _ in 0..2_000 {
        let mut bytes = records(&usual(), &[]);
        for _ in 0..3 {
            let at = usize::from(byte()) % bytes.len();
            bytes[at] = byte();
        }
        let mut inspector = ClientHelloInspector::new();
        for end in 0..=bytes.len() {
            if inspector.inspect(&bytes[..end]) != Inspection::NeedMore {
                break;
            }
        }
    }
}
