//! Envoy protos turned into checked, immutable snapshots.
//!
//! The bootstrap document becomes a [`Bootstrap`]; a [`Builder`] takes its static resources and every later [`Update`],
//! refuses the resources that are wrong, keeps what still waits for something warming, and hands out [`snapshot::Snapshot`]s.
#![forbid(unsafe_code)]

mod bootstrap;
mod builder;
mod check;
mod decode;
mod error;
pub mod filters;
mod json;
mod path;
mod resource;
pub mod snapshot;

pub use bootstrap::{AdminAddress, Bootstrap, GrpcTarget, Options, TargetAddress};
pub use builder::{Builder, Checkpoint, ListenerCheck, Subscriptions};
pub use check::release_descriptors;
pub use decode::struct_to_json;
pub use error::{ConfigError, ConfigErrors, Refusal};
pub use resource::{Resource, ResourceKind, SecretSource, Update};
