//! Faults in the arithmetic: whatever multiplication, look-up or store goes wrong, no wrong signature comes out.

use boring::bn::BigNum;
use boring::ec::{EcGroup, EcKey};
use boring::ecdsa::EcdsaSig;
use boring::nid::Nid;

use std::cell::Cell;

use crate::faulty::{Faulty, STEPS};
use crate::p256::{P256Error, P256Operation, P256PrivateKey, run};

thread_local! {
    /// The step of the fault.
    static AT: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Faults that are tried; a batch has some 80 000 steps.
const FAULTS: u64 = 60;

#[test]
fn no_wrong_signature_comes_out() {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).expect("P-256");
    let boring = EcKey::generate(&group).expect("key");
    let key = P256PrivateKey::new(&boring.private_key().to_vec()).expect("a good key");
    let nonces = [[0x31; 32], [0x75; 32]];
    let digest = [0x42; 32];
    let operations = nonces.each_ref().map(|nonce| P256Operation {
        key: &key,
        digest: &digest,
        nonce,
    });
    let faulty = |bit| Faulty {
        lane: 1,
        bit,
        strikes: |step| step == AT.get(),
    };
    let verifies = |signature: &[u8; 64]| {
        let part = |bytes| BigNum::from_slice(bytes).expect("number");
        let signature =
            EcdsaSig::from_private_components(part(&signature[..32]), part(&signature[32..])).expect("both");
        signature.verify(&digest, &boring).unwrap_or(false)
    };
    STEPS.set(0);
    let right = run(faulty(0), &operations).expect("a good batch");
    assert!(right.iter().all(|result| verifies(&result.expect("passes the checks"))));
    let steps = STEPS.get();
    assert!(
        steps > 50_000,
        "{steps} steps: a multiplication and two inversions take more"
    );
    let mut random = fastrand::Rng::with_seed(13);
    let mut dropped = 0;
    for _ in 0..FAULTS {
        AT.set(random.u64(..steps));
        STEPS.set(0);
        let results = run(faulty(random.u32(..52)), &operations).expect("a good batch");
        assert_eq!(results[0], right[0], "another lane than the fault's, step {}", AT.get());
        match results[1] {
            // Some do no harm: what they change is carried away.
            Ok(signature) => assert!(verifies(&signature), "step {}", AT.get()),
            Err(error) => {
                assert_eq!(error, P256Error::Mismatch);
                dropped += 1;
            }
        }
    }
    assert!(dropped > FAULTS / 2, "{dropped} of {FAULTS} faults had a consequence");
}
