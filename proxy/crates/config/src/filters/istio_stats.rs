//! `istio.stats`.

use std::convert::Infallible;

use super::Kind;

/// `stats.PluginConfig`, without settings.
#[derive(Debug, Default)]
pub struct IstioStats;

impl Kind for IstioStats {
    type Route = Infallible;

    fn of_struct(name: &str) -> Option<Self> {
        (name == "stats.PluginConfig").then_some(Self)
    }
}
