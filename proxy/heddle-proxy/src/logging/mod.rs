//! Log lines of the proxy itself, on standard error.

mod limit;
mod panics;

use std::time::Instant;

use tracing_subscriber::fmt::format::Format;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, reload};

use crate::admin::SetLogLevel;

pub(crate) use limit::Suppressed;
pub(crate) use panics::Panics;

/// What the rest of the program needs of the log.
pub(crate) struct Logging {
    /// Changes the level while running.
    pub(crate) set_level: SetLogLevel,
    /// Lines left out because one place wrote too many.
    pub(crate) suppressed: Suppressed,
    /// Panics so far.
    pub(crate) panics: Panics,
}

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

/// What is logged at `level`. Libraries tell of errors only: what else they have to say is of use to nobody who runs a
/// proxy, and much of it a peer can bring about at will. One of them can be turned up by name (`/logging?hyper=debug`).
fn filter(level: &str) -> String {
    match level {
        "off" | "error" => level.to_owned(),
        _ => format!("error,heddle={level},xds={level}"),
    }
}

/// Starts logging.
pub(crate) fn start(level: &str) -> Result<Logging, String> {
    let first = EnvFilter::try_new(filter(level)).map_err(|e| format!("log level {level:?}: {e}"))?;
    let (layer, handle) = reload::Layer::new(first);
    let suppressed = Suppressed::default();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .event_format(limit::Limited::new(
            Format::default().with_ansi(false),
            suppressed.clone(),
            Instant::now,
        ));
    tracing_subscriber::registry()
        .with(layer)
        .with(lines)
        .try_init()
        .map_err(|e| format!("logging cannot be started: {e}"))?;
    let panics = Panics::default();
    panics::log(panics.clone());
    let set_level: SetLogLevel = Box::new(move |wanted| {
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
    });
    Ok(Logging {
        set_level,
        suppressed,
        panics,
    })
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

    /// Everything that peers can make a library say stays below errors.
    #[test]
    fn libraries_are_quiet_at_every_level() {
        for name in ["trace", "debug", "info", "warn"] {
            let filter = EnvFilter::try_new(filter(name)).expect("valid");
            let subscriber = tracing_subscriber::registry().with(filter);
            tracing::subscriber::with_default(subscriber, || {
                assert!(!tracing::enabled!(target: "h2::proto", tracing::Level::WARN), "{name}");
                assert!(!tracing::enabled!(target: "tonic", tracing::Level::WARN), "{name}");
                assert!(tracing::enabled!(target: "hyper", tracing::Level::ERROR), "{name}");
                assert!(
                    tracing::enabled!(target: "heddle_worker::accept", tracing::Level::WARN),
                    "{name}"
                );
                assert!(tracing::enabled!(target: "xds", tracing::Level::WARN), "{name}");
            });
        }
    }
}
