//! Log lines of the proxy itself, on standard error.

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, reload};

use crate::admin::SetLogLevel;

/// Checks the name of a level. Envoy's names are accepted; `critical` is the same as `error` here.
pub(crate) fn level(name: &str) -> Result<String, String> {
    let known = match name.to_ascii_lowercase().as_str() {
        "trace" => "trace",
        "debug" => "debug",
        "info" => "info",
        "warn" | "warning" => "warn",
        "error" | "err" | "critical" => "error",
        "off" => "off",
        _ => return Err("not a level; use trace, debug, info, warning, error, critical or off".to_owned()),
    };
    Ok(known.to_owned())
}

/// What is logged at `level`: libraries stay quiet below warnings, their detail is of use to nobody who runs a proxy.
fn filter(level: &str) -> String {
    match level {
        "off" | "error" | "warn" => level.to_owned(),
        _ => format!("{level},h2=warn,hyper=warn,hyper_util=warn,tonic=warn,tower=warn"),
    }
}

/// Starts logging; the function returned changes the level while running.
pub(crate) fn start(level: &str) -> Result<SetLogLevel, String> {
    let first = EnvFilter::try_new(filter(level)).map_err(|e| format!("log level {level:?}: {e}"))?;
    let (layer, handle) = reload::Layer::new(first);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false);
    tracing_subscriber::registry()
        .with(layer)
        .with(lines)
        .try_init()
        .map_err(|e| format!("logging cannot be started: {e}"))?;
    Ok(Box::new(move |wanted| {
        let current = || handle.with_current(ToString::to_string).map_err(|e| e.to_string());
        let next = match wanted.split_once(':') {
            None if wanted.is_empty() => return current(),
            None => filter(&self::level(wanted)?),
            // One module: its own level beside what is in force.
            Some((module, wanted)) => format!("{},{module}={}", current()?, self::level(wanted)?),
        };
        let parsed = EnvFilter::try_new(&next).map_err(|e| format!("{next:?} is not a filter: {e}"))?;
        handle.reload(parsed).map_err(|e| e.to_string())?;
        current()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_envoys_names() {
        for (name, expected) in [
            ("warning", "warn"),
            ("critical", "error"),
            ("INFO", "info"),
            ("off", "off"),
        ] {
            assert_eq!(level(name).as_deref(), Ok(expected));
        }
        assert!(level("loud").is_err());
    }

    #[test]
    fn filters_are_valid() {
        for name in ["trace", "debug", "info", "warn", "error", "off"] {
            assert!(EnvFilter::try_new(filter(name)).is_ok(), "{name}");
        }
    }
}
