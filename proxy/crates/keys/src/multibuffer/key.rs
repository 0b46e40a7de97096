//! A key in the two forms that its operations are done with.

use std::ops::Deref;
use std::time::Duration;

use boring::pkey::{PKey, Private};
use heddle_simd::{Engine, RsaPrivateKey};

use crate::rsa::{KeyRefused, RsaKey};

/// One certificate's key: BoringSSL's form, to which it dereferences, and the lanes'.
pub(super) struct BatchKey {
    software: RsaKey,
    lanes: RsaPrivateKey,
    poll_delay: Duration,
    engine: Engine,
}

impl BatchKey {
    pub(super) fn new(pkey: PKey<Private>, poll_delay: Duration, engine: Engine) -> Result<Self, KeyRefused> {
        let (software, lanes) = RsaKey::new(pkey, RsaPrivateKey::new)?;
        Ok(Self {
            software,
            lanes,
            poll_delay,
            engine,
        })
    }

    pub(super) fn lanes(&self) -> &RsaPrivateKey {
        &self.lanes
    }

    pub(super) fn engine(&self) -> Engine {
        self.engine
    }

    pub(super) fn poll_delay(&self) -> Duration {
        self.poll_delay
    }
}

impl Deref for BatchKey {
    type Target = RsaKey;

    fn deref(&self) -> &RsaKey {
        &self.software
    }
}
