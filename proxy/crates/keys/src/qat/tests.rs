use boring::rsa::{Padding, Rsa};
use heddle_qat::MAX_IN_FLIGHT;
use heddle_qat::testing::{Answered, Fake, INSTANCES};
use tokio::task::{spawn_local, yield_now};
use tokio::time::Instant;

use super::worker::ANSWER_WITHIN;
use super::*;
use crate::SoftwareProvider;
use crate::testing::{KEYS, SCHEMES, counted, verifies, worker, worker_in_time};

const DELAY: Duration = Duration::from_millis(5);
const PSS: SignatureAlgorithm = SignatureAlgorithm::RsaPssSha256;
/// The place of [`PSS`] in [`SCHEMES`].
const PSS_SCHEME: usize = 3;

/// A device, and providers of both keys on it.
fn providers(fake: &Fake) -> [QatProvider; 2] {
    let device = fake.start().expect("a device");
    [0, 1].map(|key| QatProvider::new(KEYS[key].clone(), DELAY, device).expect("a good key"))
}

fn by_device(n: usize) -> String {
    format!("heddle_qat_operations_total{{path=\"device\"}} {n}")
}

fn fell_back(reason: &str, n: usize) -> String {
    format!("heddle_qat_fallbacks_total{{reason=\"{reason}\"}} {n}")
}

#[test]
fn every_scheme_verifies() {
    let fake = Fake::new();
    worker(|stats| async move {
        let providers = providers(&fake);
        let begun = Instant::now();
        let waiting: Vec<_> = (0..SCHEMES.len())
            .map(|i| providers[i % 2].sign(SCHEMES[i].0, b"hello"))
            .collect();
        assert_eq!(fake.counts(0).waiting, 6, "handed over at once");
        for (i, signature) in waiting.into_iter().enumerate() {
            let signature = signature.await.expect("signs");
            assert!(verifies(i % 2, i, b"hello", &signature), "{:?}", SCHEMES[i].0);
        }
        assert!(
            begun.elapsed() >= DELAY && begun.elapsed() <= DELAY + Duration::from_millis(1),
            "answered at the first poll, and polled at poll_delay: {:?}",
            begun.elapsed()
        );
        assert!(counted(&stats, &by_device(6)));
        assert!(counted(&stats, "heddle_qat_wait_ms_count 6"));
        assert!(fake.memory_is_wiped());
    });
}

#[test]
fn decryption_keeps_the_padding_and_bad_ciphertexts_reach_no_device() {
    let fake = Fake::new();
    worker(|_| async move {
        let [provider, _] = providers(&fake);
        let mut cipher = vec![0; 256];
        let rsa = KEYS[0].rsa().expect("rsa");
        rsa.public_encrypt(b"secret", &mut cipher, Padding::PKCS1)
            .expect("encrypts");
        let plain = provider.decrypt(&cipher).await.expect("decrypts");
        assert_eq!(&plain[..2], &[0, 2]);
        assert!(plain.ends_with(b"\0secret"));
        // Not below the modulus, equal to it, short, empty.
        for bad in [&[0xff; 256], rsa.n().to_vec().as_slice(), &cipher[..255], &[]] {
            assert!(matches!(provider.decrypt(bad).await, Err(KeyError::Failed(_))));
        }
        assert_eq!(fake.counts(0).taken, 1);
    });
}

/// The faults are of the kind that gives a prime away to whoever sees one such signature.
#[test]
fn wrong_results_never_leave() {
    let fake = Fake::new();
    worker(|stats| async move {
        let providers = providers(&fake);
        for i in 0..12 {
            let answered = [Answered::Wrongly, Answered::Rightly][i % 2];
            fake.next(0, answered, 1 + (i % 3) as u32);
        }
        let waiting: Vec<_> = (0..12)
            .map(|i| providers[i % 2].sign(SCHEMES[i % 6].0, b"hello"))
            .collect();
        for (i, signature) in waiting.into_iter().enumerate() {
            let signature = signature.await.expect("signs");
            assert!(verifies(i % 2, i % 6, b"hello", &signature), "operation {i}");
        }
        assert!(counted(&stats, "heddle_qat_verify_failures_total 6"));
        assert!(counted(&stats, &fell_back("unverified", 6)));
        assert!(counted(&stats, &by_device(6)));
    });
}

#[test]
fn late_answers_are_waited_for_and_may_come_in_any_order() {
    let fake = Fake::new();
    worker(|stats| async move {
        let [provider, _] = providers(&fake);
        for polls in [4, 1, 3, 2] {
            fake.next(0, Answered::Rightly, polls);
        }
        let begun = Instant::now();
        let waiting = [4, 1, 3, 2].map(|polls| {
            let signature = provider.sign(PSS, &[polls as u8]);
            spawn_local(async move {
                let signature = signature.await.expect("signs");
                assert!(verifies(0, PSS_SCHEME, &[polls as u8], &signature));
                let waited = begun.elapsed();
                assert!(
                    waited >= polls * DELAY && waited < (polls + 1) * DELAY,
                    "answered at poll {polls}: {waited:?}"
                );
            })
        });
        for one in waiting {
            one.await.expect("as it should be");
        }
        assert!(counted(&stats, &by_device(4)));
    });
}

#[test]
fn what_the_device_cannot_do_software_does() {
    let fake = Fake::new();
    worker(|stats| async move {
        let [provider, _] = providers(&fake);
        let cases = [
            (Answered::WithStatus(-1), "failed"),
            (Answered::Refused(-2), "busy"),
            (Answered::Refused(-7), "refused"),
            (Answered::Never, "late"),
        ];
        for (answered, reason) in cases {
            fake.next(0, answered, 1);
            let begun = Instant::now();
            let signature = provider.sign(PSS, b"x").await.expect("signs");
            assert!(verifies(0, PSS_SCHEME, b"x", &signature), "{answered:?}");
            assert!(counted(&stats, &fell_back(reason, 1)), "{answered:?}");
            assert!(begun.elapsed() <= ANSWER_WITHIN + 2 * DELAY + Duration::from_millis(1));
        }
        assert!(counted(&stats, "heddle_qat_operations_total{path=\"software\"} 4"));
        // The one that never answers does not keep others from theirs.
        assert!(provider.sign(PSS, b"x").await.is_ok());
        assert!(counted(&stats, &by_device(1)));
    });
}

#[test]
fn a_full_instance_leaves_the_rest_to_software() {
    let fake = Fake::new();
    worker(|stats| async move {
        let [provider, _] = providers(&fake);
        for _ in 0..MAX_IN_FLIGHT {
            fake.next(0, Answered::Never, 1);
        }
        let stuck: Vec<_> = (0..MAX_IN_FLIGHT).map(|_| provider.sign(PSS, b"x")).collect();
        let begun = Instant::now();
        let signature = provider.sign(PSS, b"x").await.expect("signs");
        assert!(verifies(0, PSS_SCHEME, b"x", &signature));
        assert_eq!(begun.elapsed(), Duration::ZERO, "no wait for a device that has no room");
        assert!(counted(&stats, &fell_back("busy", 1)));
        assert_eq!(fake.counts(0).taken as usize, MAX_IN_FLIGHT);
        drop(stuck);
        let abandoned = format!("heddle_qat_abandoned_total {MAX_IN_FLIGHT}");
        assert!(counted(&stats, &abandoned));
    });
}

#[test]
fn who_leaves_does_not_disturb_who_stays() {
    let fake = Fake::new();
    worker(|stats| async move {
        let [provider, _] = providers(&fake);
        let leaves = provider.sign(PSS, b"gone");
        let stays = provider.sign(PSS, b"x");
        drop(leaves);
        drop(provider);
        assert!(verifies(0, PSS_SCHEME, b"x", &stays.await.expect("signs")));
        assert!(counted(&stats, "heddle_qat_abandoned_total 1"));
        assert_eq!(fake.counts(0).waiting, 0, "what was left is answered too");
        assert!(fake.memory_is_wiped());
    });
}

#[test]
fn an_idle_instance_is_not_polled() {
    let fake = Fake::new();
    worker(|_| async move {
        let [provider, _] = providers(&fake);
        provider.sign(PSS, b"x").await.expect("signs");
        yield_now().await;
        // Would be answered within two delays if somebody asked for it.
        let device = provider.key.device;
        let instance = std::iter::repeat_with(|| device.instance())
            .take(INSTANCES)
            .last()
            .expect("the first one again");
        instance
            .begin(&provider.key.numbers, &[1; 256], Box::new(|_| {}))
            .expect("begun");
        tokio::time::sleep(10 * DELAY).await;
        assert_eq!(instance.in_flight(), 1);
        // The next operation has it polled again.
        provider.sign(PSS, b"x").await.expect("signs");
        assert_eq!(instance.in_flight(), 0);
    });
}

#[test]
fn a_shorter_delay_is_not_held_up_by_a_longer_one() {
    let fake = Fake::new();
    worker(|_| async move {
        let device = fake.start().expect("a device");
        let with = |delay| QatProvider::new(KEYS[0].clone(), delay, device).expect("a good key");
        let (slow, quick) = (with(100 * DELAY), with(DELAY));
        let begun = Instant::now();
        let first = slow.sign(PSS, b"x");
        let second = quick.sign(PSS, b"x");
        second.await.expect("signs");
        assert!(begun.elapsed() < 2 * DELAY, "{:?}", begun.elapsed());
        first.await.expect("signs");
        assert!(begun.elapsed() < 2 * DELAY, "answered by the same poll");
    });
}

#[test]
fn workers_spread_over_the_instances() {
    let fake = Fake::new();
    let device = fake.start().expect("a device");
    std::thread::scope(|scope| {
        for _ in 0..2 * INSTANCES {
            scope.spawn(|| {
                worker_in_time(|stats| async move {
                    let provider = QatProvider::new(KEYS[0].clone(), DELAY, device).expect("a good key");
                    for message in [b"1", b"2", b"3"] {
                        let signature = provider.sign(PSS, message).await.expect("signs");
                        assert!(verifies(0, PSS_SCHEME, message, &signature));
                    }
                    let wrong = (1..=3).any(|n| counted(&stats, &fell_back("unverified", n)));
                    assert!(!wrong, "results of one worker's operations were another's");
                })
            });
        }
    });
    for instance in 0..INSTANCES {
        assert_eq!(fake.counts(instance).taken, 6, "of instance {instance}");
    }
}

#[test]
fn threads_that_are_no_workers_sign_at_once() {
    let fake = Fake::new();
    let [provider, _] = providers(&fake);
    let mut operation = provider.sign(PSS, b"x");
    let polled = operation
        .as_mut()
        .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    let std::task::Poll::Ready(Ok(signature)) = polled else {
        panic!("{polled:?}")
    };
    assert!(verifies(0, PSS_SCHEME, b"x", &signature));
    assert_eq!(fake.counts(0).taken, 0);
}

#[test]
fn without_a_device_fallback_decides() {
    let pem = KEYS[0].private_key_to_pem_pkcs8().expect("pem");
    let with = |fallback| {
        let settings = Settings {
            poll_delay: DELAY,
            fallback,
        };
        let missing = Unavailable::Library("libqat.so.4: no such file".to_owned());
        provider(&pem, settings, Err(missing)).map(|provider| provider.name())
    };
    assert_eq!(with(true), Ok(SoftwareProvider::from_pem(&pem).expect("key").name()));
    let refused = with(false).expect_err("refused");
    assert!(
        refused.is_of_the_machine() && refused.to_string().contains("libqat.so.4"),
        "{refused}"
    );
}

#[test]
fn keys_that_the_device_does_not_do_are_refused() {
    let device = Fake::new().start().expect("a device");
    let refused = |key| QatProvider::new(key, DELAY, device).err();
    let short = PKey::from_rsa(Rsa::generate(1024).expect("rsa")).expect("key");
    assert_eq!(refused(short), Some(KeyRefused::Numbers(heddle_simd::KeyError::Size)));
    let group = boring::ec::EcGroup::from_curve_name(boring::nid::Nid::X9_62_PRIME256V1).expect("curve");
    let curve = PKey::from_ec_key(boring::ec::EcKey::generate(&group).expect("key")).expect("key");
    assert_eq!(refused(curve), Some(KeyRefused::NotRsa));
}
