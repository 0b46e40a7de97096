use std::mem::offset_of;
use std::sync::mpsc::{Receiver, channel};

use boring::bn::{BigNum, BigNumRef};
use boring::pkey::Private;
use boring::rsa::{Padding, Rsa};

use super::*;
use crate::abi::*;
use crate::library::{Library, Loaded};
use crate::testing::{Answered, Fake, INSTANCES};

fn instance(fake: &Fake) -> &'static Instance {
    fake.start().expect("a device").instance()
}

fn key(rsa: &Rsa<Private>) -> PrivateKey {
    let number = |number: Option<&BigNumRef>| number.expect("a key with its primes").to_vec();
    let numbers = [rsa.p(), rsa.q(), rsa.dmp1(), rsa.dmq1(), rsa.iqmp()].map(number);
    PrivateKey::new(rsa.size() as usize / 2, numbers.each_ref().map(Vec::as_slice)).expect("a key")
}

/// A number below the modulus, and what BoringSSL makes of it.
fn operation(rsa: &Rsa<Private>) -> (Vec<u8>, Vec<u8>) {
    let mut input = BigNum::new().expect("a number");
    rsa.n().rand_range(&mut input).expect("random");
    let input = input.to_vec_padded(rsa.size() as usize).expect("it fits");
    let mut output = vec![0; input.len()];
    rsa.private_encrypt(&input, &mut output, Padding::NONE).expect("done");
    (input, output)
}

type Given = Receiver<Result<Vec<u8>, Failure>>;

fn begin(instance: &'static Instance, key: &PrivateKey, input: &[u8]) -> Result<Given, Refused> {
    let (sender, receiver) = channel();
    let answer = Box::new(move |result| sender.send(result).expect("somebody waits"));
    instance.begin(key, input, answer).map(|()| receiver)
}

#[test]
fn structures_are_those_of_c() {
    let ours = [
        size_of::<CpaFlatBuffer>(),
        size_of::<CpaCyRsaPrivateKey>(),
        offset_of!(CpaCyRsaPrivateKey, representation2),
        size_of::<CpaCyRsaDecryptOpData>(),
        offset_of!(CpaCyRsaDecryptOpData, input),
        // Those with a reserve are larger than the library's.
        19 * 4,
        offset_of!(CpaCyCapabilitiesInfo, supported) + RSA_SUPPORTED * 4,
        offset_of!(CpaInstanceInfo2, reserve),
        offset_of!(CpaInstanceInfo2, node_affinity),
        offset_of!(CpaInstanceInfo2, is_polled),
    ];
    assert_eq!(Fake::new().layout().map(|n| n as usize), ours);
    // As the compiler has them of the headers of QATlib 26.08.
    assert_eq!(ours, [16, 120, 40, 24, 8, 76, 16, 932, 912, 924]);
}

#[test]
fn every_size_agrees_with_boringssl() {
    let fake = Fake::new();
    let instance = instance(&fake);
    for bits in [2048, 3072, 4096] {
        let rsa = Rsa::generate(bits).expect("a key");
        let key = key(&rsa);
        for _ in 0..4 {
            let (input, output) = operation(&rsa);
            let given = begin(instance, &key, &input).expect("begun");
            assert!(given.try_recv().is_err(), "answered before it was polled");
            assert_eq!(instance.in_flight(), 1);
            instance.poll().expect("polls");
            assert_eq!(given.try_recv().expect("answered"), Ok(output));
            assert_eq!(instance.in_flight(), 0);
        }
    }
    assert!(fake.memory_is_wiped(), "something of a key is left");
}

#[test]
fn late_out_of_order_and_failed_answers_find_their_own() {
    let fake = Fake::new();
    let instance = instance(&fake);
    let rsa = Rsa::generate(2048).expect("a key");
    let key = key(&rsa);
    let script = [
        (Answered::Rightly, 3),
        (Answered::Rightly, 1),
        (Answered::WithStatus(-1), 2),
        (Answered::Twice, 1),
        (Answered::Rightly, 2),
    ];
    for (answered, polls) in script {
        fake.next(0, answered, polls);
    }
    let operations = [(); 5].map(|()| operation(&rsa));
    let given = operations
        .each_ref()
        .map(|(input, _)| begin(instance, &key, input).expect("begun"));
    for poll in 1..=3 {
        instance.poll().expect("polls");
        for (i, (answered, polls)) in script.into_iter().enumerate() {
            let want = match answered {
                Answered::WithStatus(status) => Err(Failure(status)),
                _ => Ok(operations[i].1.clone()),
            };
            let got = given[i].try_recv().ok();
            assert_eq!(got, (polls == poll).then_some(want), "operation {i} at poll {poll}");
        }
    }
    assert_eq!(instance.in_flight(), 0);
    assert!(fake.memory_is_wiped());
}

#[test]
fn what_is_on_its_way_is_bounded() {
    let fake = Fake::new();
    let instance = instance(&fake);
    let rsa = Rsa::generate(2048).expect("a key");
    let key = key(&rsa);
    let (input, output) = operation(&rsa);
    fake.next(0, Answered::Never, 1);
    let given: Vec<_> = (0..MAX_IN_FLIGHT)
        .map(|_| begin(instance, &key, &input).expect("begun"))
        .collect();
    assert_eq!(begin(instance, &key, &input).err(), Some(Refused::Busy));
    instance.poll().expect("polls");
    assert!(given[0].try_recv().is_err(), "an answer that never comes");
    assert!(
        given[1..]
            .iter()
            .all(|given| given.try_recv() == Ok(Ok(output.clone())))
    );
    // It keeps its place, and its memory: the device may still write there.
    assert_eq!((instance.in_flight(), fake.counts(0).waiting), (1, 1));
    assert_eq!(fake.counts(0).most_waiting as usize, MAX_IN_FLIGHT);
}

#[test]
fn what_is_refused_leaves_nothing_behind() {
    let fake = Fake::new();
    let instance = instance(&fake);
    let rsa = Rsa::generate(2048).expect("a key");
    let key = key(&rsa);
    let (input, _) = operation(&rsa);
    for (status, refused) in [(-2, Refused::Busy), (-5, Refused::Status(-5))] {
        fake.next(0, Answered::Refused(status), 1);
        assert_eq!(begin(instance, &key, &input).err(), Some(refused));
    }
    assert_eq!(begin(instance, &key, &input[1..]).err(), Some(Refused::Length));
    assert_eq!(instance.in_flight(), 0);
    assert!(fake.memory_is_wiped());
}

#[test]
fn keys_of_other_lengths_are_refused() {
    let number = [1; 128];
    assert!(PrivateKey::new(128, [&number; 5]).is_some());
    assert!(PrivateKey::new(127, [&number; 5]).is_none());
    assert!(PrivateKey::new(257, [&number; 5]).is_none());
    assert!(PrivateKey::new(0, [&[]; 5]).is_none());
    // Leading zeros do not count.
    let mut long = vec![0; 64];
    long.extend(number);
    assert!(PrivateKey::new(128, [&long, &number, &[], &number, &[1]]).is_some());
}

#[test]
fn workers_take_turns() {
    let device = Fake::new().start().expect("a device");
    assert_eq!(device.instances(), INSTANCES);
    let turns: Vec<_> = (0..2 * INSTANCES)
        .map(|_| std::ptr::from_ref(device.instance()))
        .collect();
    assert_eq!(turns[..INSTANCES], turns[INSTANCES..]);
    assert!(turns[0] != turns[1] && turns[1] != turns[2] && turns[0] != turns[2]);
}

#[test]
fn what_is_missing_is_named() {
    let said = |result: Result<&Device, Unavailable>| result.err().expect("unavailable").to_string();
    let fake = Fake::new();
    fake.setup(-1, 4);
    assert!(said(fake.start()).contains("icp_sal_userStart returned -1"));
    fake.setup(0, 0);
    assert_eq!(fake.start().err(), Some(Unavailable::NoInstance));
    let missing = Loaded::new(c"libno-such-qat.so.4").err().expect("no such library");
    assert!(missing.to_string().contains("libno-such-qat.so.4"), "{missing}");
    let other = Loaded::new(c"libm.so.6").expect("the C library's");
    let error = Library::new(other).err();
    assert_eq!(error, Some(Unavailable::Function("icp_sal_userStart".to_owned())));
}
