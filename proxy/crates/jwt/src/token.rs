//! A token in compact form (RFC 7515 section 3.1), not verified.

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Map, Value};

use crate::{Algorithm, JwtError};

/// Longest token that is read, in bytes.
pub const MAX_TOKEN: usize = 32 * 1024;

/// Base64url, with padding or without: RFC 7515 has none, and Envoy takes both.
pub(crate) const BASE64URL: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A token, read but not verified.
#[derive(Clone, Debug)]
pub struct Token {
    text: Box<str>,
    header_end: usize,
    payload_end: usize,
    /// The name of its algorithm, for keys that say theirs.
    pub(crate) alg: Box<str>,
    pub(crate) algorithm: Algorithm,
    pub(crate) kid: Option<Box<str>>,
    pub(crate) signature: Vec<u8>,
    header: Map<String, Value>,
    payload: Map<String, Value>,
    issuer: Box<str>,
    subject: Box<str>,
    audiences: Vec<Box<str>>,
    not_before: Option<u64>,
    expires: Option<u64>,
}

impl Token {
    /// Reads a token.
    ///
    /// # Errors
    /// It has another form, is too large, or a registered claim (RFC 7519 section 4.1) is of the wrong type.
    pub fn parse(text: &str) -> Result<Self, JwtError> {
        if text.len() > MAX_TOKEN {
            return Err(JwtError::TooLarge);
        }
        let mut sections = text.split('.');
        let (Some(head), Some(body), Some(signature), None) =
            (sections.next(), sections.next(), sections.next(), sections.next())
        else {
            return Err(JwtError::BadFormat);
        };
        if head.is_empty() || body.is_empty() || signature.is_empty() {
            return Err(JwtError::BadFormat);
        }
        let header = object(head, JwtError::HeaderBase64, JwtError::HeaderJson)?;
        let alg = match header.get("alg") {
            Some(Value::String(alg)) => alg.as_str(),
            _ => return Err(JwtError::HeaderAlg),
        };
        let algorithm = Algorithm::of(alg).ok_or(JwtError::UnknownAlg)?;
        let kid = text_of(&header, "kid", JwtError::HeaderKid)?;
        let payload = object(body, JwtError::PayloadBase64, JwtError::PayloadJson)?;
        let issuer = text_of(&payload, "iss", JwtError::IssNotString)?;
        let subject = text_of(&payload, "sub", JwtError::SubNotString)?;
        seconds(&payload, "iat", JwtError::IatNotInteger, JwtError::IatOutOfRange)?;
        let not_before = seconds(&payload, "nbf", JwtError::NbfNotInteger, JwtError::NbfOutOfRange)?;
        let expires = seconds(&payload, "exp", JwtError::ExpNotInteger, JwtError::ExpOutOfRange)?;
        text_of(&payload, "jti", JwtError::JtiNotString)?;
        let audiences = audiences(&payload)?;
        let signature = BASE64URL.decode(signature).map_err(|_| JwtError::SignatureBase64)?;
        Ok(Self {
            text: text.into(),
            header_end: head.len(),
            payload_end: head.len() + 1 + body.len(),
            alg: alg.into(),
            algorithm,
            kid: kid.filter(|kid| !kid.is_empty()).map(Box::from),
            signature,
            issuer: issuer.unwrap_or_default().into(),
            subject: subject.unwrap_or_default().into(),
            audiences,
            not_before,
            expires,
            header,
            payload,
        })
    }

    /// What is signed: header and payload as they came, with the dot.
    pub(crate) fn signed(&self) -> &[u8] {
        self.text.as_bytes().get(..self.payload_end).unwrap_or_default()
    }

    /// The payload as it came, in base64url.
    pub fn encoded_payload(&self) -> &str {
        self.text.get(self.header_end + 1..self.payload_end).unwrap_or_default()
    }

    /// The JOSE header.
    pub fn header(&self) -> &Map<String, Value> {
        &self.header
    }

    /// The claims.
    pub fn payload(&self) -> &Map<String, Value> {
        &self.payload
    }

    /// `iss`; empty when there is none.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// `sub`; empty when there is none.
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// `aud`.
    pub fn audiences(&self) -> &[Box<str>] {
        &self.audiences
    }

    /// `exp`, in seconds since 1970.
    pub fn expires(&self) -> Option<u64> {
        self.expires
    }

    /// Whether the token is valid at a time, in seconds since 1970, give or take `skew` seconds.
    ///
    /// # Errors
    /// It is not yet, or no more.
    pub fn check_time(&self, now: u64, skew: u64) -> Result<(), JwtError> {
        if self.not_before.is_some_and(|from| now.saturating_add(skew) < from) {
            return Err(JwtError::NotYetValid);
        }
        if self.expires.is_some_and(|until| now > until.saturating_add(skew)) {
            return Err(JwtError::Expired);
        }
        Ok(())
    }
}

fn object(section: &str, bad_base64: JwtError, bad_json: JwtError) -> Result<Map<String, Value>, JwtError> {
    let json = BASE64URL.decode(section).map_err(|_| bad_base64)?;
    serde_json::from_slice(&json).map_err(|_| bad_json)
}

fn text_of<'m>(fields: &'m Map<String, Value>, name: &str, wrong: JwtError) -> Result<Option<&'m str>, JwtError> {
    match fields.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(wrong),
    }
}

/// A NumericDate (RFC 7519 section 2); a fraction is cut off.
fn seconds(
    fields: &Map<String, Value>,
    name: &str,
    wrong: JwtError,
    out_of_range: JwtError,
) -> Result<Option<u64>, JwtError> {
    let number = match fields.get(name) {
        None => return Ok(None),
        Some(Value::Number(number)) => number,
        Some(_) => return Err(wrong),
    };
    match (number.as_u64(), number.as_f64()) {
        (Some(whole), _) => Ok(Some(whole)),
        // 2^64 is the first double that does not fit.
        (None, Some(n)) if (0.0..18_446_744_073_709_551_616.0).contains(&n) => Ok(Some(n as u64)),
        _ => Err(out_of_range),
    }
}

fn audiences(payload: &Map<String, Value>) -> Result<Vec<Box<str>>, JwtError> {
    match payload.get("aud") {
        None => Ok(Vec::new()),
        Some(Value::String(one)) => Ok(vec![one.as_str().into()]),
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| item.as_str().map(Box::from).ok_or(JwtError::AudNotString))
            .collect(),
        Some(_) => Err(JwtError::AudNotString),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(header: &str, payload: &str) -> String {
        format!("{}.{}.c2ln", BASE64URL.encode(header), BASE64URL.encode(payload))
    }

    const HEADER: &str = r#"{"alg":"RS256","kid":"k"}"#;

    #[test]
    fn forms() {
        let good = token(HEADER, "{}");
        let replaced = |from: &str, to: &str| good.replace(from, to);
        for (text, expected) in [
            ("", JwtError::BadFormat),
            ("a.b", JwtError::BadFormat),
            ("a.b.c.d", JwtError::BadFormat),
            ("a..c", JwtError::BadFormat),
            ("a b.e30.c", JwtError::HeaderBase64),
            ("e30.e30.c2ln", JwtError::HeaderAlg),
            ("W10.e30.c2ln", JwtError::HeaderJson),
            (&replaced(".c2ln", ".c2l!"), JwtError::SignatureBase64),
            (&replaced(".c2ln", ".c2ln c"), JwtError::SignatureBase64),
            (&token(r#"{"alg":7}"#, "{}"), JwtError::HeaderAlg),
            (&token(r#"{"alg":"none"}"#, "{}"), JwtError::UnknownAlg),
            (&token(r#"{"alg":"RS1"}"#, "{}"), JwtError::UnknownAlg),
            (&token(r#"{"alg":"éé"}"#, "{}"), JwtError::UnknownAlg),
            (&token(r#"{"alg":"HS256","kid":1}"#, "{}"), JwtError::HeaderKid),
            (&token(HEADER, "[]"), JwtError::PayloadJson),
            (&token(HEADER, r#"{"iss":1}"#), JwtError::IssNotString),
            (&token(HEADER, r#"{"sub":[]}"#), JwtError::SubNotString),
            (&token(HEADER, r#"{"iat":"1"}"#), JwtError::IatNotInteger),
            (&token(HEADER, r#"{"nbf":-1}"#), JwtError::NbfOutOfRange),
            (&token(HEADER, r#"{"exp":1e20}"#), JwtError::ExpOutOfRange),
            (&token(HEADER, r#"{"jti":null}"#), JwtError::JtiNotString),
            (&token(HEADER, r#"{"aud":["a",1]}"#), JwtError::AudNotString),
            (&"a".repeat(MAX_TOKEN + 1), JwtError::TooLarge),
            (
                &token(HEADER, &format!("{}{}", r#"{"a":"#, "[".repeat(1000))),
                JwtError::PayloadJson,
            ),
        ] {
            assert_eq!(Token::parse(text).err(), Some(expected), "{text:.80}");
        }
    }

    #[test]
    fn claims_and_time() {
        let text = token(
            HEADER,
            r#"{"iss":"i","sub":"s","aud":"a","nbf":100,"exp":200.9,"x":{"y":1}}"#,
        );
        let token = Token::parse(&text).expect("a token");
        assert_eq!((token.issuer(), token.subject()), ("i", "s"));
        assert_eq!(token.audiences(), [Box::from("a")]);
        assert_eq!(text, format!("{}.c2ln", String::from_utf8_lossy(token.signed())));
        assert_eq!(text.split('.').nth(1), Some(token.encoded_payload()));
        for (now, skew, expected) in [
            (100, 0, Ok(())),
            (99, 0, Err(JwtError::NotYetValid)),
            (40, 60, Ok(())),
            (200, 0, Ok(())),
            (201, 0, Err(JwtError::Expired)),
            (260, 60, Ok(())),
            (261, 60, Err(JwtError::Expired)),
            (u64::MAX, u64::MAX, Ok(())),
        ] {
            assert_eq!(token.check_time(now, skew), expected, "{now} {skew}");
        }
    }
}
