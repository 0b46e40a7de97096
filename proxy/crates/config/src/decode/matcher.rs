//! String, header, query and metadata matchers.

use heddle_matching::{
    HeaderMatcher, HeaderTest, MetadataMatcher, QueryMatcher, QueryTest, Regex, StringMatcher, StringTest, ValueMatcher,
};

use super::{Result, pb, required};
use crate::path::Path;

/// A regular expression.
pub(crate) fn regex(matcher: &pb::matcher::RegexMatcher, path: &Path<'_>) -> Result<Regex> {
    Regex::new(&matcher.regex).map_err(|e| path.field("regex").error(e.to_string()))
}

/// `StringMatcher`.
pub(crate) fn string(matcher: &pb::matcher::StringMatcher, path: &Path<'_>) -> Result<StringMatcher> {
    use pb::matcher::string_matcher::MatchPattern;
    let test = match &matcher.match_pattern {
        Some(MatchPattern::Exact(s)) => StringTest::Exact(s.as_str().into()),
        Some(MatchPattern::Prefix(s)) => StringTest::Prefix(s.as_str().into()),
        Some(MatchPattern::Suffix(s)) => StringTest::Suffix(s.as_str().into()),
        Some(MatchPattern::Contains(s)) => StringTest::Contains(s.as_str().into()),
        Some(MatchPattern::SafeRegex(r)) => {
            if matcher.ignore_case {
                return Err(path
                    .field("ignore_case")
                    .error("has no effect on safe_regex; write (?i) into the expression"));
            }
            StringTest::Regex(regex(r, &path.field("safe_regex"))?)
        }
        Some(MatchPattern::Custom(_)) => return Err(path.field("custom").error("not implemented; remove it")),
        None => return Err(path.error("one of exact, prefix, suffix, contains, safe_regex must be set")),
    };
    Ok(StringMatcher::new(test, matcher.ignore_case))
}

/// `HeaderMatcher` of the route API, which RBAC shares.
#[expect(deprecated, reason = "the older spellings are still accepted, as Envoy does")]
pub(crate) fn header(matcher: &pb::route::HeaderMatcher, path: &Path<'_>) -> Result<HeaderMatcher> {
    use pb::route::header_matcher::HeaderMatchSpecifier as Spec;
    let test = match &matcher.header_match_specifier {
        // Envoy: without a test the header must be there.
        None => HeaderTest::Present(true),
        Some(Spec::PresentMatch(present)) => HeaderTest::Present(*present),
        Some(Spec::RangeMatch(range)) => HeaderTest::Range {
            start: range.start,
            end: range.end,
        },
        Some(Spec::StringMatch(m)) => HeaderTest::String(string(m, &path.field("string_match"))?),
        Some(Spec::ExactMatch(s)) => HeaderTest::String(StringMatcher::exact(s.as_str())),
        Some(Spec::PrefixMatch(s)) => HeaderTest::String(StringMatcher::prefix(s.as_str())),
        Some(Spec::SuffixMatch(s)) => HeaderTest::String(StringMatcher::suffix(s.as_str())),
        Some(Spec::ContainsMatch(s)) => HeaderTest::String(StringMatcher::contains(s.as_str())),
        Some(Spec::SafeRegexMatch(r)) => {
            HeaderTest::String(StringMatcher::regex(regex(r, &path.field("safe_regex_match"))?))
        }
    };
    Ok(HeaderMatcher::new(
        &matcher.name,
        test,
        matcher.invert_match,
        matcher.treat_missing_header_as_empty,
    ))
}

/// `QueryParameterMatcher`.
pub(crate) fn query(matcher: &pb::route::QueryParameterMatcher, path: &Path<'_>) -> Result<QueryMatcher> {
    use pb::route::query_parameter_matcher::QueryParameterMatchSpecifier as Spec;
    let test = match &matcher.query_parameter_match_specifier {
        None => QueryTest::Present(true),
        Some(Spec::PresentMatch(present)) => QueryTest::Present(*present),
        Some(Spec::StringMatch(m)) => QueryTest::String(string(m, &path.field("string_match"))?),
    };
    Ok(QueryMatcher::new(&matcher.name, test))
}

/// `MetadataMatcher`.
pub(crate) fn metadata(matcher: &pb::matcher::MetadataMatcher, path: &Path<'_>) -> Result<MetadataMatcher> {
    use pb::matcher::metadata_matcher::path_segment::Segment;
    let names = matcher.path.iter().enumerate().map(|(i, step)| {
        let Segment::Key(name) = required(step.segment.as_ref(), &path.item("path", i))?;
        Ok(name.as_str().into())
    });
    let here = path.field("value");
    Ok(MetadataMatcher::new(
        &matcher.filter,
        names.collect::<Result<_>>()?,
        value(required(matcher.value.as_ref(), &here)?, &here)?,
        matcher.invert,
    ))
}

/// `ValueMatcher`.
fn value(matcher: &pb::matcher::ValueMatcher, path: &Path<'_>) -> Result<ValueMatcher> {
    use pb::matcher::double_matcher::MatchPattern as Double;
    use pb::matcher::list_matcher::MatchPattern as List;
    use pb::matcher::value_matcher::MatchPattern;
    Ok(match required(matcher.match_pattern.as_ref(), path)? {
        MatchPattern::NullMatch(_) => ValueMatcher::Null,
        MatchPattern::DoubleMatch(m) => match required(m.match_pattern.as_ref(), &path.field("double_match"))? {
            Double::Exact(number) => ValueMatcher::Number(*number),
            Double::Range(range) => ValueMatcher::Range {
                start: range.start,
                end: range.end,
            },
        },
        MatchPattern::StringMatch(m) => ValueMatcher::String(string(m, &path.field("string_match"))?),
        MatchPattern::BoolMatch(wanted) => ValueMatcher::Bool(*wanted),
        MatchPattern::PresentMatch(wanted) => ValueMatcher::Present(*wanted),
        MatchPattern::ListMatch(m) => {
            let here = path.field("list_match");
            let List::OneOf(item) = required(m.match_pattern.as_ref(), &here)?;
            ValueMatcher::OneOf(Box::new(value(item, &here.field("one_of"))?))
        }
        MatchPattern::OrMatch(m) => {
            let here = path.field("or_match");
            let matchers = m.value_matchers.iter().enumerate();
            let matchers = matchers.map(|(i, m)| value(m, &here.item("value_matchers", i)));
            ValueMatcher::Or(matchers.collect::<Result<_>>()?)
        }
    })
}
