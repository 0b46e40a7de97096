//! String, header, path and metadata matchers, regular expressions and role-based access control.
//! Everything here is built once per configuration push and then only read.
#![forbid(unsafe_code)]

mod address;
mod engine;
mod header;
mod lazy_dfa;
mod metadata;
mod path;
pub mod percent;
mod query;
pub mod rbac;
mod re2;
mod reading;
mod regex;
mod scans;
mod set;
mod string;
mod view;

pub(crate) use path::PathReadings;
pub(crate) use reading::Reading;

pub use address::{Cidr, CidrError};
pub use engine::RegexEngine;
pub use header::{HeaderMatcher, HeaderReadings, HeaderTest, is_other_spelling, is_respelled, is_separator};
pub use metadata::{MAX_METADATA, Metadata, MetadataMatcher, MetadataOverflow, ValueMatcher};
pub use path::PathMatcher;
pub use query::{QueryMatcher, QueryTest};
pub use regex::{MAX_COMPILED, MAX_PATTERN, Regex, RegexError, RegexMemory, regex_memory};
pub use scans::{RegexSets, Scans, Subject, Visit};
pub use set::hyperscan::{HyperscanCounts, hyperscan_counts};
pub use string::{StringMatcher, StringTest};
pub use view::RequestView;
