//! Handshakes of other implementations through the provider of QuickAssist devices, on a library without any.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use heddle_keys::qat::QatProvider;
use heddle_qat::testing::{Answered, Fake};

use super::multibuffer::{Keys, local, metric, openssl_in_all_ways, serve};
use super::*;

/// A device answers rightly, late, wrongly, with errors and never; each client gets a good handshake.
#[test]
fn openssl_through_a_device_that_errs() {
    local(|stats| async move {
        let fake = Fake::new();
        let device = fake.start().expect("a device");
        let script = [
            (Answered::Rightly, 1),
            (Answered::Wrongly, 2),
            (Answered::Rightly, 9),
            (Answered::WithStatus(-1), 1),
            (Answered::Refused(-2), 1),
            (Answered::Twice, 3),
            (Answered::Never, 1),
        ];
        for (answered, polls) in script {
            fake.next(0, answered, polls);
        }
        let root = Rc::new(Authority::root("root"));
        let files = openssl::Files::new("qat");
        let ca = files.write("ca.pem", &root.pem());
        let making = move |key| {
            let provider = QatProvider::new(key, Duration::from_millis(2), device);
            Arc::new(provider.expect("a good key")) as Arc<dyn heddle_keys::PrivateKeyProvider>
        };
        let address = serve(root, Rc::new(making), Keys::Rsa).await;
        let operations = openssl_in_all_ways(&ca, address).await;
        let by = |path| metric(&stats, &format!("heddle_qat_operations_total{{path=\"{path}\"}}"));
        assert_eq!(by("device") + by("software"), operations);
        // The wrong one, the failed one, the refused one, the one without answer; more where the machine is too busy to poll.
        assert!(
            by("software") >= 4 && by("device") > 0,
            "{} by software",
            by("software")
        );
        assert_eq!(metric(&stats, "heddle_qat_abandoned_total"), 0);
    });
}
