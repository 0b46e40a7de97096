//! `docs/reference/limits.md` says what the sources say.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A row: where the value stands, and what is claimed of it.
struct Row {
    bound: String,
    default: String,
    fields: Vec<String>,
    counters: Vec<String>,
    file: String,
    name: String,
}

fn proxy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A source file without its tests.
fn source(file: &str) -> String {
    let text = read(&proxy().join(file));
    text.split("#[cfg(test)]").next().unwrap_or_default().to_owned()
}

/// What stands between backticks.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn rows() -> Vec<Row> {
    let page = read(&proxy().join("../docs/reference/limits.md"));
    let rows = page
        .lines()
        .filter(|l| l.starts_with("| ") && !l.starts_with("| bound") && !l.starts_with("| ---"));
    rows.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [bound, default, field, counter, place] = cells[..] else {
            panic!("not five cells: {line}");
        };
        let [file, name] = quoted(place)
            .try_into()
            .unwrap_or_else(|_| panic!("not a place: {line}"));
        Row {
            bound: bound.to_owned(),
            default: default.to_owned(),
            fields: quoted(field),
            counters: quoted(counter),
            file,
            name,
        }
    })
    .collect()
}

/// A number of units, or of milliseconds when it is a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    Number(u64),
    Time(u64),
}

impl Value {
    /// `1024`, `64 KiB`, `30 s`.
    fn documented(text: &str) -> Option<Self> {
        let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
        let number: u64 = number.parse().ok()?;
        Some(match unit {
            "" => Self::Number(number),
            "KiB" => Self::Number(number << 10),
            "MiB" => Self::Number(number << 20),
            "ms" => Self::Time(number),
            "s" => Self::Time(number * 1000),
            _ => return None,
        })
    }

    /// `16 * 1024`, `1 << 20`, `Duration::from_secs(10 * 60)`.
    fn evaluated(text: &str) -> Option<Self> {
        let text = text.trim();
        let inside = |name: &str| text.strip_prefix(name)?.strip_prefix('(')?.strip_suffix(')');
        if let Some(seconds) = inside("Duration::from_secs") {
            return Some(Self::Time(number(seconds)? * 1000));
        }
        if let Some(millis) = inside("Duration::from_millis") {
            return Some(Self::Time(number(millis)?));
        }
        number(text).map(Self::Number)
    }

    /// Some decoders are given seconds as a number.
    fn is(self, documented: Self) -> bool {
        self == documented || matches!((self, documented), (Self::Number(s), Self::Time(ms)) if s * 1000 == ms)
    }
}

fn number(text: &str) -> Option<u64> {
    if let Some((left, right)) = text.split_once("<<") {
        return Some(number(left)? << number(right)?);
    }
    text.split('*')
        .map(|factor| factor.trim().replace('_', "").parse::<u64>().ok())
        .try_fold(1, |product, factor| Some(product * factor?))
}

/// The values that a source gives to a constant, a field, or a setting with a default.
fn values(source: &str, name: &str) -> BTreeSet<Value> {
    let boundary = |c: Option<char>| !c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let mut found = BTreeSet::new();
    for (at, _) in source.match_indices(name) {
        let (before, after) = (&source[..at], &source[at + name.len()..]);
        if !boundary(before.chars().next_back()) || !boundary(after.chars().next()) {
            continue;
        }
        let expression = if before.ends_with("const ") {
            after.split_once(" = ").map(|(_, rest)| rest)
        } else {
            [": ", ", ", ".unwrap_or(", ".as_ref(),", ".map_or("]
                .iter()
                .find_map(|form| after.strip_prefix(form))
        };
        found.extend(expression.and_then(|e| Value::evaluated(first_expression(e))));
    }
    found
}

/// Up to the comma, semicolon or bracket that ends it.
fn first_expression(text: &str) -> &str {
    let mut depth = 0;
    let end = text.find(|c| {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => return true,
            ')' => depth -= 1,
            ',' | ';' => return depth == 0,
            _ => {}
        }
        false
    });
    &text[..end.unwrap_or(text.len())]
}

#[test]
fn defaults_are_those_of_the_code() {
    let mut wrong = Vec::new();
    for row in rows() {
        let source = source(&row.file);
        let place = format!("{}: `{}` in {}", row.bound, row.name, row.file);
        if row.name.starts_with("fn ") {
            if !source.contains(&format!("{}(", row.name)) && !source.contains(&format!("{}<", row.name)) {
                wrong.push(format!("{place} does not exist"));
            }
            continue;
        }
        let Some(mut claimed) = Value::documented(&row.default) else {
            wrong.push(format!("{place}: {:?} is no value", row.default));
            continue;
        };
        if let (Value::Number(bytes), true) = (claimed, row.name.ends_with("_kb")) {
            claimed = Value::Number(bytes >> 10);
        }
        let found = values(&source, &row.name);
        if found.is_empty() || !found.iter().all(|value| value.is(claimed)) {
            wrong.push(format!("{place} is {found:?}, not {claimed:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn sources() -> Vec<(PathBuf, String)> {
    let mut folders = vec![proxy().join("heddle-proxy/src")];
    let crates = std::fs::read_dir(proxy().join("crates")).expect("a folder");
    folders.extend(crates.map(|entry| entry.expect("readable").path().join("src")));
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.expect("readable").path();
            let is_test = path.file_stem().is_some_and(|stem| stem == "tests");
            if path.is_dir() && !is_test {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") && !is_test {
                let text = read(&path);
                files.push((path, text.split("#[cfg(test)]").next().unwrap_or_default().to_owned()));
            }
        }
    }
    files
}

#[test]
fn counters_and_fields_exist() {
    let all = sources();
    let mut fields = source("crates/config/src/bootstrap/runtime.rs");
    let tables = ["check/fields", "filters"].map(|folder| proxy().join("crates/config/src").join(folder));
    let of_tables = |path: &Path| tables.iter().any(|folder| path.starts_with(folder));
    for (_, text) in all.iter().filter(|(path, _)| of_tables(path)) {
        fields.push_str(text);
    }
    let options = source("heddle-proxy/src/args.rs");
    let mut wrong = Vec::new();
    for row in rows() {
        for counter in &row.counters {
            let literal = format!("\"{counter}\"");
            if !all.iter().any(|(_, text)| text.contains(&literal)) {
                wrong.push(format!("{}: there is no metric {counter}", row.bound));
            }
        }
        for field in &row.fields {
            let known = match field.strip_prefix("--") {
                Some(option) => options.contains(&format!("{}:", option.replace('-', "_"))),
                // A runtime key, or a path of fields. What stands in angle brackets is a name of the user's.
                None if fields.contains(&format!("\"{field}\"")) => true,
                None => match field.split_once("<name>") {
                    Some((before, after)) => [before, after].iter().all(|p| fields.contains(&format!("\"{p}\""))),
                    None => field.split('.').all(|part| fields.contains(&format!("\"{part}\""))),
                },
            };
            if !known {
                wrong.push(format!("{}: there is no field {field}", row.bound));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_bound_is_forgotten() {
    let rows: BTreeSet<(PathBuf, String)> = rows()
        .into_iter()
        .map(|row| (proxy().join(row.file).canonicalize().expect("a file"), row.name))
        .collect();
    let mut forgotten = Vec::new();
    for (path, text) in sources() {
        let path = path.canonicalize().expect("a file");
        for (_, rest) in text
            .match_indices("const MAX_")
            .map(|(at, _)| text.split_at(at + "const ".len()))
        {
            let name = rest.split(':').next().unwrap_or_default().to_owned();
            if !rows.contains(&(path.clone(), name.clone())) {
                forgotten.push(format!("{name} in {}", path.display()));
            }
        }
    }
    assert!(
        forgotten.is_empty(),
        "not in docs/reference/limits.md:\n{}",
        forgotten.join("\n")
    );
}
