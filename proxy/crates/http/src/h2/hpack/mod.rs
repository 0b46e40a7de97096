//! HPACK, the compression of header fields (RFC 7541), straight between the wire and [`crate::head::Fields`].
//!
//! The kept HPACK libraries bring header types of their own or none of the bounds that a proxy needs, and a field that is
//! found in a table here carries its [`crate::head::Known`] number and the knowledge that its bytes were checked.

mod decode;
mod encode;
mod huffman;
mod table;

pub use decode::Decoder;
pub(crate) use encode::Encoder;
pub use table::Field;

/// A header block that cannot be decoded. The connection cannot go on after any of these: both ends' tables differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HpackError {
    /// An index outside of both tables.
    #[error("index outside of the tables")]
    Index,
    /// An integer of more than 28 bits or with needless zeros.
    #[error("integer too large")]
    Integer,
    /// A Huffman string with EOS in it or a bad ending.
    #[error("invalid Huffman string")]
    Huffman,
    /// A table size update above what was allowed, or behind a field.
    #[error("invalid table size update")]
    SizeUpdate,
    /// A string longer than any head may be.
    #[error("string too long")]
    StringTooLong,
    /// The block ends inside a field.
    #[error("truncated block")]
    Truncated,
}
