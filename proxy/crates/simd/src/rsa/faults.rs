//! Faults in the arithmetic: whatever goes wrong where, no wrong result comes out.

use std::cell::Cell;

use crate::faulty::{Faulty, STEPS};
use crate::rsa::key::{RsaComponents, RsaPrivateKey};
use crate::rsa::{Operation, OperationError, run};

thread_local! {
    /// The step of the fault.
    static UNTIL: Cell<u64> = const { Cell::new(u64::MAX) };
}

fn key() -> RsaPrivateKey {
    let rsa = boring::rsa::Rsa::generate(2048).expect("key");
    let part = |number: Option<&boring::bn::BigNumRef>| number.expect("a whole key").to_vec();
    RsaPrivateKey::new(&RsaComponents {
        modulus: &rsa.n().to_vec(),
        public_exponent: &rsa.e().to_vec(),
        prime1: &part(rsa.p()),
        prime2: &part(rsa.q()),
        exponent1: &part(rsa.dmp1()),
        exponent2: &part(rsa.dmq1()),
        coefficient: &part(rsa.iqmp()),
    })
    .expect("a good key")
}

/// Both lanes have keys of their own: a fault may spoil the blinding factors that the key keeps for its next operation.
#[test]
fn no_wrong_result_comes_out() {
    let keys = [key(), key()];
    let input = [0x42; 256];
    let operations = keys.each_ref().map(|key| Operation { key, input: &input });
    let mut random = fastrand::Rng::with_seed(13);
    let mut draw = fastrand::Rng::with_seed(14);
    let mut draw = move |bytes: &mut [u8]| draw.fill(bytes);
    // Once with drawing pairs, then without: the steps of an operation.
    let never = Faulty {
        lane: 1,
        bit: 17,
        strikes: |_| false,
    };
    let good = run(never, &operations, &mut draw).expect("a good batch");
    let right: Vec<_> = good.into_iter().map(|result| result.expect("verifies")).collect();
    STEPS.set(0);
    let again = run(never, &operations, &mut draw).expect("a good batch");
    assert!(again.iter().all(Result::is_ok));
    let steps = STEPS.get();
    assert!(steps > 5000, "{steps} steps: two exponentiations take more");
    let mut struck = 0;
    for round in 0..40 {
        let bit = random.u32(..52);
        // Ends first, where blinding, recombination and verification are.
        let step = match round {
            0..8 => round,
            8..16 => steps - 1 - (round - 8) * 4,
            _ => random.u64(..steps),
        };
        STEPS.set(0);
        UNTIL.set(step);
        let faulty = Faulty {
            lane: 1,
            bit,
            strikes: |step| step == UNTIL.get(),
        };
        let results = run(faulty, &operations, &mut draw).expect("a good batch");
        UNTIL.set(u64::MAX);
        assert_eq!(
            results[0].as_ref(),
            Ok(&right[0]),
            "step {step}: the other lane is not touched"
        );
        match &results[1] {
            Ok(result) => assert_eq!(*result, right[1], "step {step}: only harmless faults pass"),
            Err(error) => {
                assert_eq!(*error, OperationError::Mismatch);
                struck += 1;
            }
        }
    }
    assert!(struck > 10, "only {struck} of 40 faults had an effect");
}
