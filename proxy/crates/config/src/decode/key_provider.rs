//! `private_key_provider`: who does a certificate's private operations.

use std::sync::Arc;
use std::time::Duration;

use heddle_keys::PrivateKeyProvider;
use heddle_keys::multibuffer::{self, Engine, KeyRefused, Settings};

use super::tls::data_source;
use super::{Result, pb, positive, required, unpack};
use crate::path::Path;

/// A provider's configuration, with its key in PEM. `engine` is what this processor has.
pub(super) fn provider(
    config: &pb::tls::PrivateKeyProvider,
    engine: Option<Engine>,
    path: &Path<'_>,
) -> Result<(Vec<u8>, Arc<dyn PrivateKeyProvider>)> {
    use pb::tls::private_key_provider::ConfigType;
    if config.provider_name != "cryptomb" {
        return Err(path.field("provider_name").unsupported(
            &config.provider_name,
            "use cryptomb, or give the key in private_key instead of a provider",
        ));
    }
    let here = path.field("typed_config");
    let any = match &config.config_type {
        Some(ConfigType::TypedConfig(any)) => any,
        None => return Err(here.error("must be set")),
    };
    match heddle_api::message_name(&any.type_url) {
        "envoy.extensions.private_key_providers.cryptomb.v3alpha.CryptoMbPrivateKeyMethodConfig" => {}
        other => return Err(here.unsupported(other, "use CryptoMbPrivateKeyMethodConfig")),
    }
    let method: pb::cryptomb::CryptoMbPrivateKeyMethodConfig = unpack(any, &here)?;
    let delay = here.field("poll_delay");
    required(method.poll_delay.as_ref(), &delay)?;
    let poll_delay = positive(method.poll_delay.as_ref(), Duration::ZERO, &delay)?;
    let key = here.field("private_key");
    let pem = data_source(required(method.private_key.as_ref(), &key)?, &key)?;
    let settings = Settings {
        poll_delay,
        fallback: config.fallback,
    };
    let provider = multibuffer::provider(&pem, settings, engine).map_err(|refused| match refused {
        KeyRefused::NoVectors => path.error(format!(
            "cryptomb: {refused}; set fallback: true to have software take the key here, or give the key in private_key \
             instead of a provider"
        )),
        KeyRefused::NotPem(_) => key.error(refused.to_string()),
        _ => key.error(format!(
            "cryptomb cannot use this key: {refused}; use an RSA key of 2048, 3072 or 4096 bits, set fallback: true, or \
             give the key in private_key instead of a provider"
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

    fn taken_by(config: &pb::tls::PrivateKeyProvider, engine: Option<Engine>) -> Result<&'static str> {
        provider(config, engine, &Path::document()).map(|(_, provider)| provider.name())
    }

    #[test]
    fn vectors_take_the_key_where_there_are_some() {
        assert_eq!(
            taken_by(&configured(false, KEY), Some(Engine::portable())),
            Ok("cryptomb")
        );
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
        let other = rcgen::KeyPair::generate().expect("a key of P-256").serialize_pem();
        let engine = Some(Engine::portable());
        assert_eq!(taken_by(&configured(true, &other), engine), Ok("software"));
        let error = taken_by(&configured(false, &other), engine)
            .expect_err("refused")
            .to_string();
        assert!(
            error.contains("typed_config.private_key") && error.contains("not an RSA key"),
            "{error}"
        );
        let error = taken_by(&configured(true, "none"), engine)
            .expect_err("refused")
            .to_string();
        assert!(error.contains("not a private key in PEM"), "{error}");
    }
}
