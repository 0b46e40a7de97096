//! Shares of requests.

use super::{Result, enumeration, pb, required};
use crate::path::Path;
use crate::snapshot::Fraction;

/// `FractionalPercent`.
pub(crate) fn percent(config: &pb::types::FractionalPercent, path: &Path<'_>) -> Result<Fraction> {
    use pb::types::fractional_percent::DenominatorType;
    let unit = match enumeration(config.denominator, &path.field("denominator"))? {
        DenominatorType::Hundred => 10_000,
        DenominatorType::TenThousand => 100,
        DenominatorType::Million => 1,
    };
    Ok(Fraction::new(config.numerator, unit))
}

/// `RuntimeFeatureFlag`, on unless its default value is off: there are no runtime layers with such keys.
pub(crate) fn feature(config: Option<&pb::core::RuntimeFeatureFlag>) -> bool {
    config.and_then(|flag| flag.default_value).unwrap_or(true)
}

/// `RuntimeFractionalPercent`, whose default value always holds: there are no runtime layers with such keys.
pub(crate) fn runtime(
    config: Option<&pb::core::RuntimeFractionalPercent>,
    default: Fraction,
    path: &Path<'_>,
) -> Result<Fraction> {
    let Some(config) = config else {
        return Ok(default);
    };
    let here = path.field("default_value");
    percent(required(config.default_value.as_ref(), &here)?, &here)
}
