//! `private_key_provider`: who does a certificate's private operations.

use std::sync::Arc;
use std::time::Duration;

use heddle_keys::multibuffer::{self, Engine};
use heddle_keys::{KeyRefused, PrivateKeyProvider, Settings, qat};

use super::tls::data_source;
use super::{Result, pb, positive, required, unpack};
use crate::path::Path;

const CRYPTOMB: &str = "envoy.extensions.private_key_providers.cryptomb.v3alpha.CryptoMbPrivateKeyMethodConfig";
const QAT: &str = "envoy.extensions.private_key_providers.qat.v3alpha.QatPrivateKeyMethodConfig";

/// What this machine has for private operations. A device is opened when a configuration asks for it.
#[derive(Clone, Copy)]
pub(super) struct Accelerators {
    /// The vectors of `cryptomb`.
    pub(super) engine: Option<Engine>,
    /// The device of `qat`.
    pub(super) device: fn() -> std::result::Result<&'static qat::Device, qat::Unavailable>,
}

impl Accelerators {
    /// This machine's.
    pub(super) fn detect() -> Self {
        Self {
            engine: Engine::detect(),
            device: qat::Device::open,
        }
    }
}

/// A provider's configuration, with its key in PEM.
pub(super) fn provider(
    config: &pb::tls::PrivateKeyProvider,
    machine: Accelerators,
    path: &Path<'_>,
) -> Result<(Vec<u8>, Arc<dyn PrivateKeyProvider>)> {
    use pb::tls::private_key_provider::ConfigType;
    let name = config.provider_name.as_str();
    if !["cryptomb", "qat"].contains(&name) {
        return Err(path.field("provider_name").unsupported(
            name,
            "use cryptomb or qat, or give the key in private_key instead of a provider",
        ));
    }
    let here = path.field("typed_config");
    let any = match &config.config_type {
        Some(ConfigType::TypedConfig(any)) => any,
        None => return Err(here.error("must be set")),
    };
    // Both messages have the same fields.
    let (private_key, poll_delay) = match (name, heddle_api::message_name(&any.type_url)) {
        ("cryptomb", CRYPTOMB) => {
            let method: pb::cryptomb::CryptoMbPrivateKeyMethodConfig = unpack(any, &here)?;
            (method.private_key, method.poll_delay)
        }
        ("qat", QAT) => {
            let method: pb::qat::QatPrivateKeyMethodConfig = unpack(any, &here)?;
            (method.private_key, method.poll_delay)
        }
        ("qat", other) => return Err(here.unsupported(other, "use QatPrivateKeyMethodConfig")),
        (_, other) => return Err(here.unsupported(other, "use CryptoMbPrivateKeyMethodConfig")),
    };
    let delay = here.field("poll_delay");
    required(poll_delay.as_ref(), &delay)?;
    let settings = Settings {
        poll_delay: positive(poll_delay.as_ref(), Duration::ZERO, &delay)?,
        fallback: config.fallback,
    };
    let key = here.field("private_key");
    let pem = data_source(required(private_key.as_ref(), &key)?, &key)?;
    let (provider, usable) = match name {
        "qat" => (
            qat::provider(&pem, settings, (machine.device)()),
            "an RSA key of 2048, 3072 or 4096 bits",
        ),
        _ => (
            multibuffer::provider(&pem, settings, machine.engine),
            "an RSA key of 2048, 3072 or 4096 bits or an ECDSA key of P-256",
        ),
    };
    let provider = provider.map_err(|refused| match refused {
        KeyRefused::NotPem(_) => key.error(refused.to_string()),
        _ if refused.is_of_the_machine() => path.error(format!(
            "{name}: {refused}; set fallback: true to have software take the key here, or give the key in private_key \
             instead of a provider"
        )),
        _ => key.error(format!(
            "{name} cannot use this key: {refused}; use {usable}, set fallback: true, or give the key in private_key instead \
             of a provider"
        )),
    })?;
    Ok((pem, provider))
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    /// An RSA key of 2048 bits that `openssl genrsa` made for this test.
    const KEY: &str = include_str!("../../tests/keys/rsa-2048.pem");

    fn configured(fallback: bool, key: &str) -> pb::tls::PrivateKeyProvider {
        let method = pb::cryptomb::CryptoMbPrivateKeyMethodConfig {
            private_key: Some(pb::core::DataSource {
                specifier: Some(pb::core::data_source::Specifier::InlineString(key.to_owned())),
                ..Default::default()
            }),
            poll_delay: Some(prost_types::Duration {
                seconds: 0,
                nanos: 20_000_000,
            }),
        };
        let name = "envoy.extensions.private_key_providers.cryptomb.v3alpha.CryptoMbPrivateKeyMethodConfig";
        pb::tls::PrivateKeyProvider {
            provider_name: "cryptomb".to_owned(),
            fallback,
            config_type: Some(pb::tls::private_key_provider::ConfigType::TypedConfig(
                prost_types::Any {
                    type_url: format!("type.googleapis.com/{name}"),
                    value: method.encode_to_vec(),
                },
            )),
        }
    }

    /// The same for the other provider, whose message has the same fields.
    fn configured_for_qat(fallback: bool, key: &str) -> pb::tls::PrivateKeyProvider {
        let mut config = configured(fallback, key);
        let Some(pb::tls::private_key_provider::ConfigType::TypedConfig(any)) = &mut config.config_type else {
            panic!("a typed configuration")
        };
        let same = pb::cryptomb::CryptoMbPrivateKeyMethodConfig::decode(any.value.as_slice()).expect("decodes");
        let method = pb::qat::QatPrivateKeyMethodConfig {
            private_key: same.private_key,
            poll_delay: same.poll_delay,
        };
        any.type_url = format!("type.googleapis.com/{QAT}");
        any.value = method.encode_to_vec();
        config.provider_name = "qat".to_owned();
        config
    }

    fn missing() -> std::result::Result<&'static qat::Device, qat::Unavailable> {
        Err(qat::Unavailable::Library("libqat.so.4: no such file".to_owned()))
    }

    fn present() -> std::result::Result<&'static qat::Device, qat::Unavailable> {
        heddle_qat::testing::Fake::new().start()
    }

    fn taken_by(config: &pb::tls::PrivateKeyProvider, engine: Option<Engine>) -> Result<&'static str> {
        let machine = Accelerators {
            engine,
            device: missing,
        };
        provider(config, machine, &Path::document()).map(|(_, provider)| provider.name())
    }

    #[test]
    fn a_device_takes_the_key_where_there_is_one() {
        let machine = Accelerators {
            engine: None,
            device: present,
        };
        let taken = |config: &pb::tls::PrivateKeyProvider| {
            provider(config, machine, &Path::document()).map(|(_, provider)| provider.name())
        };
        assert_eq!(taken(&configured_for_qat(false, KEY)), Ok("qat"));
        let other = rcgen::KeyPair::generate().expect("a key of P-256").serialize_pem();
        assert_eq!(taken(&configured_for_qat(true, &other)), Ok("software"));
        let error = taken(&configured_for_qat(false, &other))
            .expect_err("refused")
            .to_string();
        assert!(
            error.contains("typed_config.private_key") && error.contains("qat cannot use this key"),
            "{error}"
        );
    }

    #[test]
    fn without_a_device_fallback_decides() {
        assert_eq!(taken_by(&configured_for_qat(true, KEY), None), Ok("software"));
        let error = taken_by(&configured_for_qat(false, KEY), None)
            .expect_err("refused")
            .to_string();
        assert!(
            error.contains("qat: QATlib cannot be loaded: libqat.so.4") && error.contains("fallback: true"),
            "{error}"
        );
    }

    #[test]
    fn vectors_take_the_key_where_there_are_some() {
        let elliptic = rcgen::KeyPair::generate().expect("a key of P-256").serialize_pem();
        for key in [KEY, &elliptic] {
            assert_eq!(
                taken_by(&configured(false, key), Some(Engine::portable())),
                Ok("cryptomb")
            );
        }
    }

    #[test]
    fn without_vectors_fallback_decides() {
        assert_eq!(taken_by(&configured(true, KEY), None), Ok("software"));
        let error = taken_by(&configured(false, KEY), None)
            .expect_err("refused")
            .to_string();
        assert!(
            error.contains("AVX-512 IFMA") && error.contains("fallback: true"),
            "{error}"
        );
    }

    #[test]
    fn keys_that_the_kernels_do_not_have_fall_back_or_are_named() {
        let other = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384)
            .expect("a key of P-384")
            .serialize_pem();
        let engine = Some(Engine::portable());
        assert_eq!(taken_by(&configured(true, &other), engine), Ok("software"));
        let error = taken_by(&configured(false, &other), engine)
            .expect_err("refused")
            .to_string();
        assert!(
            error.contains("typed_config.private_key")
                && error.contains("neither an RSA key nor an ECDSA key of P-256"),
            "{error}"
        );
        let error = taken_by(&configured(true, "none"), engine)
            .expect_err("refused")
            .to_string();
        assert!(error.contains("not a private key in PEM"), "{error}");
    }
}
