//! Which fields of the Envoy API Heddle implements.
//!
//! A message that is not in the tables of this folder is not implemented, nor is a field that is neither in
//! `implemented` nor in `ignored`. Implemented means: decoded, with the semantics that Envoy documents; the decoder may
//! still refuse single values, and says so. Ignored means: the field cannot make a difference here, for the reason given.
//! What HTTP filters are configured by stands in the files of [`crate::filters`].

mod bootstrap;
mod cluster;
mod core;
mod listener;
mod policy;
mod route;

use crate::filters;

/// What Heddle does with a field that is set.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// The decoder reads it.
    Implemented,
    /// It cannot make a difference.
    Ignored,
    /// It is refused, with this remedy.
    Refused(&'static str),
}

/// One message of the API.
pub(crate) struct Message {
    pub(crate) name: &'static str,
    pub(crate) implemented: &'static [&'static str],
    /// Field and why it makes no difference.
    pub(crate) ignored: &'static [(&'static str, &'static str)],
    /// Field and what to write instead, where there is something better than removing it.
    pub(crate) instead: &'static [(&'static str, &'static str)],
}

impl Message {
    pub(super) fn status(&self, field: &str) -> Status {
        if self.implemented.contains(&field) {
            return Status::Implemented;
        }
        if self.ignored.iter().any(|(name, _)| *name == field) {
            return Status::Ignored;
        }
        Status::Refused(
            self.instead
                .iter()
                .find(|(name, _)| *name == field)
                .map_or("remove it", |(_, text)| text),
        )
    }
}

/// The entry of a message.
pub(super) fn of(name: &str) -> Option<&'static Message> {
    let listed = TABLES.iter().find_map(|table| {
        let at = table.binary_search_by(|m| m.name.cmp(name)).ok()?;
        table.get(at)
    });
    listed.or_else(|| filters::messages().find(|m| m.name == name))
}

/// Every entry: of the tables and of the HTTP filters.
pub(super) fn all() -> impl Iterator<Item = &'static Message> {
    TABLES.iter().copied().flatten().chain(filters::messages())
}

pub(crate) const fn message(name: &'static str, implemented: &'static [&'static str]) -> Message {
    Message {
        name,
        implemented,
        ignored: &[],
        instead: &[],
    }
}

pub(crate) const NO_RUNTIME: &str = "there are no runtime layers, so the default value always holds";
pub(crate) const NOBODY_READS: &str = "free-form; no filter reads it";

/// The messages by what they are about.
const TABLES: &[&[Message]] = &[
    bootstrap::TABLE,
    cluster::TABLE,
    core::TABLE,
    listener::TABLE,
    policy::TABLE,
    route::TABLE,
];

#[cfg(test)]
mod tests {
    use super::super::message_of;
    use super::*;

    #[test]
    fn tables_are_sorted_and_names_exist() {
        for pair in TABLES.iter().flat_map(|table| table.windows(2)) {
            assert!(
                pair[0].name < pair[1].name,
                "{} stands before {}",
                pair[0].name,
                pair[1].name
            );
        }
        for entry in all() {
            let descriptor = heddle_api::pool()
                .get_message_by_name(entry.name)
                .unwrap_or_else(|| panic!("{}", entry.name));
            let ignored = entry.ignored.iter().map(|(name, _)| name);
            for field in entry.implemented.iter().chain(ignored) {
                assert!(
                    descriptor.get_field_by_name(field).is_some(),
                    "{}.{field} does not exist",
                    entry.name
                );
            }
        }
    }

    /// An implemented field that holds a message is useless unless that message is in the table too.
    #[test]
    fn messages_of_implemented_fields_are_in_the_table() {
        for entry in all() {
            let descriptor = heddle_api::pool()
                .get_message_by_name(entry.name)
                .expect("checked above");
            for field in entry.implemented {
                let field = descriptor.get_field_by_name(field).expect("checked above");
                if let Some(inner) = message_of(&field) {
                    let name = inner.full_name().to_owned();
                    assert!(
                        name.starts_with("google.protobuf.") || of(&name).is_some(),
                        "{}.{} holds {name}, which is not in the table",
                        entry.name,
                        field.name()
                    );
                }
            }
        }
    }

    #[test]
    fn a_message_has_one_entry() {
        let mut names = std::collections::HashSet::new();
        for entry in all() {
            assert!(names.insert(entry.name), "{} has two entries", entry.name);
        }
    }

    #[test]
    fn a_field_is_in_one_list_only() {
        for entry in all() {
            for (field, _) in entry.ignored {
                assert!(!entry.implemented.contains(field), "{}.{field}", entry.name);
            }
        }
    }
}
