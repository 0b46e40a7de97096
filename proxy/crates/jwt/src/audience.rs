//! Audiences that are let in.

/// A list of audiences. As in Envoy, `http://`, `https://` and a slash at the end make no difference.
#[derive(Clone, Debug, Default)]
pub struct Audiences(Vec<Box<str>>);

impl Audiences {
    /// These audiences; none of them means all.
    pub fn new<'a>(audiences: impl IntoIterator<Item = &'a str>) -> Self {
        Self(audiences.into_iter().map(|a| bare(a).into()).collect())
    }

    /// Whether one of a token's audiences (`aud`) is among them.
    pub fn allow(&self, audiences: &[Box<str>]) -> bool {
        self.0.is_empty()
            || audiences
                .iter()
                .any(|a| self.0.iter().any(|wanted| **wanted == *bare(a)))
    }
}

fn bare(audience: &str) -> &str {
    let rest = audience
        .strip_prefix("http://")
        .or_else(|| audience.strip_prefix("https://"));
    let rest = rest.unwrap_or(audience);
    rest.strip_suffix('/').unwrap_or(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_and_slashes_make_no_difference() {
        let allowed = Audiences::new(["https://shop.example/", "cart"]);
        for (audience, expected) in [
            ("shop.example", true),
            ("http://shop.example", true),
            ("shop.example/a", false),
            ("cart/", true),
            ("", false),
        ] {
            assert_eq!(allowed.allow(&[audience.into()]), expected, "{audience}");
        }
        assert!(!allowed.allow(&[]));
        assert!(Audiences::default().allow(&[]));
    }
}
