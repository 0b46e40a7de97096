//! `envoy.filters.http.grpc_web`.

use std::convert::Infallible;

use heddle_api::envoy::extensions::filters::http::grpc_web::v3 as pb;
use prost_types::Any;

use super::Kind;
use crate::check::fields::{Message, message};
use crate::decode::{Result, unpack};
use crate::path::Path;

/// `envoy.extensions.filters.http.grpc_web.v3.GrpcWeb`, which has no settings.
#[derive(Debug)]
pub struct GrpcWeb;

impl Kind for GrpcWeb {
    const TYPE: &'static str = "envoy.extensions.filters.http.grpc_web.v3.GrpcWeb";
    const MESSAGES: &'static [Message] = &[message(Self::TYPE, &[])];
    type Route = Infallible;

    fn decode(any: &Any, path: &Path<'_>) -> Result<Self> {
        let _: pb::GrpcWeb = unpack(any, path)?;
        Ok(Self)
    }
}
