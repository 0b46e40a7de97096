//! What is wrong with a token or a key set.

use crate::{MAX_JWKS, MAX_KEYS, MAX_TOKEN};

/// Why a token was not accepted, or a key set not read. The texts are answers to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the texts say it")]
pub enum JwtError {
    #[error("Jwt is missing")]
    Missing,
    #[error("Jwt not yet valid")]
    NotYetValid,
    #[error("Jwt is expired")]
    Expired,
    #[error("Jwt is not in the form of Header.Payload.Signature with two dots and 3 sections")]
    BadFormat,
    #[error("Jwt is larger than {MAX_TOKEN} bytes")]
    TooLarge,
    #[error("Jwt claims take more room than a request has")]
    ClaimsTooLarge,
    #[error("Jwt header is an invalid Base64url encoded")]
    HeaderBase64,
    #[error("Jwt header is an invalid JSON")]
    HeaderJson,
    #[error("Jwt header [alg] field is required and must be a string")]
    HeaderAlg,
    #[error("Jwt header [alg] is not supported")]
    UnknownAlg,
    #[error("Jwt header [kid] field is not a string")]
    HeaderKid,
    #[error("Jwt payload is an invalid Base64url encoded")]
    PayloadBase64,
    #[error("Jwt payload is an invalid JSON")]
    PayloadJson,
    #[error("Jwt payload [iss] field is not a string")]
    IssNotString,
    #[error("Jwt payload [sub] field is not a string")]
    SubNotString,
    #[error("Jwt payload [iat] field is not an integer")]
    IatNotInteger,
    #[error("Jwt payload [iat] field is not a positive 64 bit integer")]
    IatOutOfRange,
    #[error("Jwt payload [nbf] field is not an integer")]
    NbfNotInteger,
    #[error("Jwt payload [nbf] field is not a positive 64 bit integer")]
    NbfOutOfRange,
    #[error("Jwt payload [exp] field is not an integer")]
    ExpNotInteger,
    #[error("Jwt payload [exp] field is not a positive 64 bit integer")]
    ExpOutOfRange,
    #[error("Jwt payload [jti] field is not a string")]
    JtiNotString,
    #[error("Jwt payload [aud] field is not a string or string list")]
    AudNotString,
    #[error("Jwt signature is an invalid Base64url encoded")]
    SignatureBase64,
    #[error("Jwt ED25519 signature is wrong length")]
    Ed25519Length,
    #[error("Jwt issuer is not configured")]
    UnknownIssuer,
    #[error("Audiences in Jwt are not allowed")]
    AudienceNotAllowed,
    #[error("Jwt verification fails")]
    VerificationFails,
    #[error("Jwks is an invalid JSON")]
    JwksJson,
    #[error("Jwks does not have [keys] field")]
    JwksNoKeys,
    #[error("[keys] in Jwks is not an array")]
    JwksBadKeys,
    #[error("Jwks doesn't have any valid public key")]
    JwksNoValidKeys,
    #[error("Jwks is larger than {MAX_JWKS} bytes")]
    JwksTooLarge,
    #[error("Jwks has more than {MAX_KEYS} keys")]
    JwksTooMany,
    #[error("Jwks doesn't have key to match kid or alg from Jwt")]
    JwksNoMatch,
    #[error("Jwks remote fetch is failed")]
    JwksFetch,
    #[error("[kty] is missing in [keys]")]
    KtyMissing,
    #[error("[kty] is not supported in [keys]")]
    KtyUnknown,
    #[error("[alg] does not suit [kty] in [keys]")]
    KeyAlg,
    #[error("[crv] or [alg] field is not supported for an EC or OKP key")]
    KeyCurve,
    #[error("a field of a key is missing, not a string, or not what its [kty] asks for")]
    KeyField,
    #[error("X509 parse pubkey fails")]
    X509,
}
