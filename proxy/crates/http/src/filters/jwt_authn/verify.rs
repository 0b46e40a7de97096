//! Whether a request has the tokens that a requirement asks for.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use heddle_config::filters::jwt_authn::{Allow, Expiration, Extractor, Provider, Requirement};
use heddle_jwt::{Audiences, JwtError, KeySet, Token};
use serde_json::{Map, Value};

use super::JwtAuthn;
use super::extract::{self, Sent};
use super::fetch::Source;
use crate::hcm::Exchange;

/// Keys that were fetched for this request, by provider.
pub(super) type Brought = Vec<(usize, Result<Arc<KeySet>, JwtError>)>;

/// What good tokens had to say.
#[derive(Default)]
pub(super) struct Found {
    /// What there is to verify them with, beside what is here anyway.
    pub(super) brought: Brought,
    /// Claims and headers by the providers' keys.
    pub(super) metadata: Map<String, Value>,
    /// The route is to be chosen again.
    pub(super) clear_route_cache: bool,
}

/// Whose tokens are asked for.
#[derive(Clone, Copy)]
pub(super) struct Asked<'c> {
    /// None for tokens of any provider.
    pub(super) provider: Option<usize>,
    audiences: Option<&'c Audiences>,
    pub(super) extractor: &'c Extractor,
    allow: Allow,
}

impl JwtAuthn {
    /// Asks a requirement, and writes what good tokens say into the request.
    pub(super) fn check(
        &self,
        requirement: &Requirement,
        exchange: &mut Exchange,
        found: &mut Found,
    ) -> Result<(), JwtError> {
        match requirement {
            Requirement::Nothing => Ok(()),
            Requirement::Provider { provider, audiences } => {
                let asked = self.of_provider(*provider, audiences.as_ref());
                self.authenticate(asked.ok_or(JwtError::UnknownIssuer)?, exchange, found)
            }
            Requirement::Allow(allow) => self.authenticate(self.of_any(*allow), exchange, found),
            Requirement::All(all) => all.iter().try_for_each(|one| self.check(one, exchange, found)),
            Requirement::Any { of, allow } => {
                // What went wrong with a token says more than that there is none, or another's.
                let mut worst = JwtError::Missing;
                for one in of {
                    match self.check(one, exchange, found) {
                        Ok(()) => return Ok(()),
                        Err(JwtError::Missing | JwtError::UnknownIssuer) if worst != JwtError::Missing => {}
                        Err(error) => worst = error,
                    }
                }
                match (allow, worst) {
                    (Allow::MissingOrFailed, _) | (Allow::Missing, JwtError::Missing) => Ok(()),
                    (_, error) => Err(error),
                }
            }
        }
    }

    pub(super) fn of_provider<'c>(&'c self, provider: usize, audiences: Option<&'c Audiences>) -> Option<Asked<'c>> {
        Some(Asked {
            provider: Some(provider),
            audiences,
            extractor: &self.config.providers.get(provider)?.extractor,
            allow: Allow::Nothing,
        })
    }

    pub(super) fn of_any(&self, allow: Allow) -> Asked<'_> {
        Asked {
            provider: None,
            audiences: None,
            extractor: &self.config.everywhere,
            allow,
        }
    }

    /// All tokens in the provider's places must be good: what is behind may take any of them.
    fn authenticate(&self, asked: Asked<'_>, exchange: &mut Exchange, found: &mut Found) -> Result<(), JwtError> {
        // What another provider wrote into the same fields goes, as in Envoy.
        for name in &asked.extractor.sanitize {
            exchange.request.fields.remove_any_spelling(name.as_bytes());
        }
        let mut tokens = extract::tokens(asked.extractor, &exchange.request);
        let mut result = Err(JwtError::Missing);
        while let Some(sent) = tokens.pop() {
            result = self.token(asked, &sent, exchange, found);
            if result.is_err() && asked.allow != Allow::MissingOrFailed {
                return result;
            }
        }
        match (asked.allow, result) {
            (Allow::MissingOrFailed, _) | (Allow::Missing, Err(JwtError::Missing)) => Ok(()),
            (_, result) => result,
        }
    }

    fn token(
        &self,
        asked: Asked<'_>,
        sent: &Sent<'_>,
        exchange: &mut Exchange,
        found: &mut Found,
    ) -> Result<(), JwtError> {
        let known = asked.provider.and_then(|provider| self.known(provider, &sent.text));
        let is_known = known.is_some();
        let token = match known {
            Some(token) => token,
            None => Rc::new(Token::parse(&sent.text)?),
        };
        let (number, provider) = self.claims(asked, sent, &token, exchange.start)?;
        if !is_known {
            self.keys_of(number, &found.brought)?.verify(&token)?;
        }
        write(&token, provider, exchange, found);
        if !provider.forward {
            extract::remove(&sent.location.place, &mut exchange.request);
        }
        if asked.provider.is_some() && !is_known {
            self.remember(number, provider, &sent.text, token);
        }
        Ok(())
    }

    /// Whose token it is, if it may be used here and now.
    pub(super) fn claims(
        &self,
        asked: Asked<'_>,
        sent: &Sent<'_>,
        token: &Token,
        now: SystemTime,
    ) -> Result<(usize, &Provider), JwtError> {
        let issuers = sent.location.issuers.as_ref();
        if issuers.is_some_and(|issuers| !issuers.iter().any(|issuer| **issuer == *token.issuer())) {
            return Err(JwtError::UnknownIssuer);
        }
        let number = asked
            .provider
            .or_else(|| self.config.provider_of_issuer(token.issuer()));
        let number = number.ok_or(JwtError::UnknownIssuer)?;
        let provider = self.config.providers.get(number).ok_or(JwtError::UnknownIssuer)?;
        claims_allowed(token, provider, asked.audiences.unwrap_or(&provider.audiences), now)?;
        Ok((number, provider))
    }

    /// The keys of a provider.
    fn keys_of(&self, provider: usize, brought: &Brought) -> Result<Arc<KeySet>, JwtError> {
        if let Some((_, keys)) = brought.iter().find(|(of, _)| *of == provider) {
            return keys.clone();
        }
        let keys = self.keys.get(provider).and_then(Source::good);
        keys.ok_or(JwtError::JwksFetch)
    }

    /// Whether this provider's keys have verified a token before.
    pub(super) fn is_known(&self, provider: usize, text: &str) -> bool {
        let verified = self.verified.get(provider);
        verified.is_some_and(|verified| verified.borrow().contains_key(text))
    }

    /// A token that this provider's keys have verified before.
    fn known(&self, provider: usize, text: &str) -> Option<Rc<Token>> {
        self.config.providers.get(provider)?.cache?;
        let known = self.verified.get(provider)?.borrow().get(text).cloned();
        match known {
            Some(_) => self.cache_hits.inc(),
            None => self.cache_misses.inc(),
        }
        known
    }

    fn remember(&self, number: usize, provider: &Provider, text: &str, token: Rc<Token>) {
        let (Some((size, longest)), Some(verified)) = (provider.cache, self.verified.get(number)) else {
            return;
        };
        if text.len() > longest {
            return;
        }
        let mut verified = verified.borrow_mut();
        if verified.len() >= size {
            // More clients than places: they cost signatures then, not memory.
            verified.clear();
        }
        verified.insert(text.into(), token);
    }
}

/// Whether a token may be used now, here, by its subject.
fn claims_allowed(token: &Token, provider: &Provider, audiences: &Audiences, now: SystemTime) -> Result<(), JwtError> {
    let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    token.check_time(now, provider.clock_skew)?;
    if provider.subjects.as_ref().is_some_and(|m| !m.matches(token.subject())) {
        return Err(JwtError::VerificationFails);
    }
    let ends = match (provider.expiration, token.expires()) {
        (Expiration::Optional, _) | (Expiration::Required, Some(_)) => true,
        (Expiration::Within(most), Some(end)) => end.saturating_sub(now) < most.as_secs(),
        (_, None) => false,
    };
    if !ends {
        return Err(JwtError::VerificationFails);
    }
    if !audiences.allow(token.audiences()) {
        return Err(JwtError::AudienceNotAllowed);
    }
    Ok(())
}

/// Puts a good token's claims where the provider wants them.
fn write(token: &Token, provider: &Provider, exchange: &mut Exchange, found: &mut Found) {
    let fields = &mut exchange.request.fields;
    if let Some(name) = &provider.payload_header {
        let payload = token.encoded_payload();
        let padding = match provider.pad_payload_header {
            true => "=".repeat(payload.len().wrapping_neg() % 4),
            false => String::new(),
        };
        fields.push(name.as_bytes(), format!("{payload}{padding}").as_bytes());
    }
    let mut written = false;
    for (path, name) in &provider.claim_to_headers {
        let text = claim(token.payload(), path).and_then(header_text);
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            fields.push(name.as_bytes(), text.as_bytes());
            written = true;
        }
    }
    if let Some(key) = &provider.header_in_metadata {
        found.metadata.insert(key.to_string(), token.header().clone().into());
    }
    if let Some(key) = &provider.payload_in_metadata {
        let mut payload = token.payload().clone();
        for name in &provider.space_delimited_claims {
            if let Some(value) = payload.get_mut(&**name)
                && let Value::String(text) = value
            {
                let words: Vec<Value> = text
                    .split(' ')
                    .filter(|word| !word.is_empty())
                    .map(Value::from)
                    .collect();
                // A text without words stays a text, as in Envoy.
                if !words.is_empty() {
                    *value = words.into();
                }
            }
        }
        found.metadata.insert(key.to_string(), payload.into());
        written = true;
    }
    found.clear_route_cache |= provider.clear_route_cache && written;
}

fn claim<'p>(payload: &'p Map<String, Value>, path: &[Box<str>]) -> Option<&'p Value> {
    let (first, rest) = path.split_first()?;
    rest.iter()
        .try_fold(payload.get(&**first)?, |value, name| value.as_object()?.get(&**name))
}

/// A claim as a field's value: structures are JSON in base64. What cannot stand in a field is left out.
fn header_text(value: &Value) -> Option<String> {
    let text = match value {
        Value::Null => return None,
        Value::Bool(value) => value.to_string(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64()? {
            // 2^64 is the first that is no 64-bit integer.
            whole if whole.fract() == 0.0 && (0.0..18_446_744_073_709_551_616.0).contains(&whole) => {
                (whole as u64).to_string()
            }
            other => format!("{other:.6}"),
        },
        Value::Array(_) | Value::Object(_) => STANDARD.encode(value.to_string()),
    };
    (!text.bytes().any(|b| matches!(b, b'\r' | b'\n' | 0))).then_some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_as_fields() {
        for (value, expected) in [
            (json!("text"), Some("text")),
            (json!(true), Some("true")),
            (json!(17), Some("17")),
            (json!(17.0), Some("17")),
            (json!(1.5), Some("1.500000")),
            (json!(-3), Some("-3.000000")),
            (json!(null), None),
            (json!("a\nx-forged: 1"), None),
            (json!(["a"]), Some("WyJhIl0=")),
            (json!({"a": 1}), Some("eyJhIjoxfQ==")),
        ] {
            assert_eq!(header_text(&value).as_deref(), expected, "{value}");
        }
        let payload = json!({"a": {"b": 1}});
        let payload = payload.as_object().expect("an object");
        assert_eq!(claim(payload, &["a".into(), "b".into()]), Some(&json!(1)));
        assert_eq!(claim(payload, &["a".into(), "c".into()]), None);
        assert_eq!(claim(payload, &["a".into(), "b".into(), "c".into()]), None);
    }
}
