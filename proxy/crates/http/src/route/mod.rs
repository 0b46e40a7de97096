//! Routing: which route, what it changes.

pub(crate) mod ops;
pub(crate) mod rewrite;
pub(crate) mod select;
mod selected;

pub(crate) use selected::{BoundTable, Selected};
