use heddle_config::filters::compressor::{BrotliMode, GzipStrategy};
use heddle_config::filters::{compressor, decompressor};
use heddle_telemetry::Stats;

use super::*;

const CODERS: [compressor::Library; 3] = [
    compressor::Library::Gzip {
        level: 6,
        strategy: GzipStrategy::Default,
        memory_level: 5,
        window_bits: 12,
    },
    compressor::Library::Brotli {
        quality: 3,
        mode: BrotliMode::Generic,
        window_bits: 18,
        block_bits: 24,
        literal_context_modeling: true,
    },
    compressor::Library::Zstd {
        level: 3,
        checksum: true,
        strategy: 0,
    },
];

const DECODERS: [decompressor::Library; 3] = [
    decompressor::Library::Gzip {
        window_bits: 15,
        max_ratio: 100,
    },
    decompressor::Library::Brotli,
    decompressor::Library::Zstd,
];

fn compress(library: compressor::Library, stats: &Stats) -> Compress {
    Compress::new(library, Bytes::new(stats, &["c"], "p"))
}

fn decompress(library: decompressor::Library, stats: &Stats) -> Decompress {
    let bytes = Bytes::new(stats, &["d"], "p");
    Decompress::new(library, "n", bytes, Errors::new(library, stats, &["d"], "p"))
}

/// Feeds pieces of a body, and drains as a stage does.
fn run(transform: &mut impl Transform, body: &[u8], piece: usize) -> (Vec<u8>, Option<Fields>) {
    let mut all = Vec::new();
    let mut trailers = None;
    for mut input in body.chunks(piece) {
        let mut more = false;
        while !input.is_empty() || more {
            let mut out = Vec::new();
            let given = if more { &[][..] } else { input };
            let step = transform.data(given, &mut out).expect("a step");
            assert!(out.len() <= PIECE + STEP, "{} bytes at once", out.len());
            assert!(step.more || step.taken > 0 || !out.is_empty() || more, "no progress");
            more = step.more;
            input = &input[step.taken..];
            all.extend(out);
        }
    }
    while !transform.end(&mut trailers, &mut all).expect("the end") {}
    (all, trailers)
}

fn text(n: usize) -> Vec<u8> {
    (0..n)
        .flat_map(|i| format!("line {} of {n}\n", i * i).into_bytes())
        .collect()
}

fn value(stats: &Stats, name: &str) -> u64 {
    stats
        .counter(
            heddle_telemetry::stats::name(name.to_owned()),
            &[("http_conn_manager_prefix", "p")],
        )
        .get()
}

#[test]
fn what_was_compressed_can_be_read() {
    for (coder, decoder) in CODERS.into_iter().zip(DECODERS) {
        for body in [Vec::new(), b"a".to_vec(), text(20_000)] {
            for piece in [1 << 20, 5000, 7] {
                if piece == 7 && body.len() > 1000 {
                    continue;
                }
                let stats = Stats::new();
                let (coded, trailers) = run(&mut compress(coder, &stats), &body, piece);
                assert!(trailers.is_none());
                assert_eq!(value(&stats, "c_total_uncompressed_bytes"), body.len() as u64);
                assert_eq!(value(&stats, "c_total_compressed_bytes"), coded.len() as u64);
                assert!(body.len() < 1000 || coded.len() < body.len() / 2, "{coder:?}");
                for piece in [1 << 20, 100, 1] {
                    if piece == 1 && coded.len() > 10_000 {
                        continue;
                    }
                    let stats = Stats::new();
                    let (decoded, trailers) = run(&mut decompress(decoder, &stats), &coded, piece);
                    assert!(
                        decoded == body,
                        "{decoder:?}, {} bytes in pieces of {piece}",
                        body.len()
                    );
                    let trailers = trailers.expect("trailers");
                    let length = trailers.joined(b"x-envoy-decompressor-n-uncompressed-bytes");
                    assert_eq!(length.as_deref(), Some(body.len().to_string().as_str()));
                }
            }
        }
    }
}

/// What was given so far can be read before the body is over: clients wait for each event of a stream.
#[test]
fn pieces_are_flushed() {
    for (coder, decoder) in CODERS.into_iter().zip(DECODERS) {
        let stats = Stats::new();
        let (mut compress, mut decompress) = (compress(coder, &stats), decompress(decoder, &stats));
        for event in ["data: one\n\n", "data: two\n\n"] {
            let (mut coded, mut decoded) = (Vec::new(), Vec::new());
            compress.data(event.as_bytes(), &mut coded).expect("a step");
            decompress.data(&coded, &mut decoded).expect("a step");
            assert_eq!(decoded, event.as_bytes(), "{coder:?}");
        }
    }
}

/// Few bytes that stand for very many give no more than the ratio allows.
#[test]
fn bombs_are_cut() {
    let body = vec![0; 50 << 20];
    let errors = [
        "d_decompressor_library_zlib_data_error",
        "d_decompressor_library_brotli_output_overflow",
        "d_decompressor_library_zstd_generic_error",
    ];
    for ((coder, decoder), error) in CODERS.into_iter().zip(DECODERS).zip(errors) {
        let stats = Stats::new();
        let (coded, _) = run(&mut compress(coder, &stats), &body, 1 << 20);
        let (decoded, _) = run(&mut decompress(decoder, &stats), &coded, 1000);
        assert!(
            decoded.len() < body.len() / 2,
            "{decoder:?} gives {} bytes",
            decoded.len()
        );
        assert!(decoded.len() <= 100 * coded.len() + STEP, "{decoder:?}");
        assert_eq!(value(&stats, error), 1, "{decoder:?}");
    }
}

#[test]
fn garbage_ends_a_body() {
    let errors = [
        "d_decompressor_library_zlib_data_error",
        "d_decompressor_library_brotli_error",
        "d_decompressor_library_zstd_generic_error",
    ];
    for (decoder, error) in DECODERS.into_iter().zip(errors) {
        let stats = Stats::new();
        let (decoded, _) = run(&mut decompress(decoder, &stats), &[0xff; 1000], 10);
        assert!(decoded.is_empty(), "{decoder:?}");
        assert_eq!(value(&stats, error), 1, "{decoder:?}");
    }
    // What was right before is given. To gzip most bytes say something; it tells by the checksum.
    for ((coder, decoder), error) in CODERS.into_iter().zip(DECODERS).zip(errors) {
        let stats = Stats::new();
        let body = text(5000);
        let (mut coded, _) = run(&mut compress(coder, &stats), &body, 1000);
        let wrong = match decoder {
            decompressor::Library::Gzip { .. } => coded.len() - 8,
            _ => coded.len() / 2,
        };
        coded.truncate(wrong);
        coded.extend([0xff; 200]);
        let (decoded, _) = run(&mut decompress(decoder, &stats), &coded, 50);
        let right = body.iter().zip(&decoded).take_while(|(a, b)| a == b).count();
        assert!(right > body.len() / 4, "{decoder:?} gives {right} bytes");
        assert_eq!(value(&stats, error), 1, "{decoder:?}");
    }
}

#[test]
fn zstd_windows_are_bounded() {
    // A frame whose window is 128 MiB (RFC 8878 section 3.1.1), with an empty last block.
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 17 << 3, 0x01, 0x00, 0x00];
    let stats = Stats::new();
    run(&mut decompress(decompressor::Library::Zstd, &stats), &frame, 100);
    assert_eq!(value(&stats, "d_decompressor_library_zstd_memory_error"), 1);
}
