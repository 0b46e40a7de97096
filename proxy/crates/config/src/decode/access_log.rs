//! Access logs.

use heddle_telemetry::access_log::{Destination, ENVOY_DEFAULT, Format};

use super::{Result, metadata, pb, required, tls, unpack};
use crate::path::Path;
use crate::snapshot::AccessLog;

/// A list of `AccessLog`.
pub(super) fn access_logs(logs: &[pb::accesslog::AccessLog], path: &Path<'_>) -> Result<Vec<AccessLog>> {
    logs.iter()
        .enumerate()
        .map(|(i, log)| access_log(log, &path.item("access_log", i)))
        .collect()
}

fn access_log(log: &pb::accesslog::AccessLog, path: &Path<'_>) -> Result<AccessLog> {
    use pb::accesslog::access_log::ConfigType;
    use pb::stream_log::{stderr_access_log, stdout_access_log};
    let here = path.field("typed_config");
    let Some(ConfigType::TypedConfig(any)) = &log.config_type else {
        return Err(here.error("must be set"));
    };
    match heddle_api::message_name(&any.type_url) {
        "envoy.extensions.access_loggers.file.v3.FileAccessLog" => {
            let file: pb::file_log::FileAccessLog = unpack(any, &here)?;
            let destination = match file.path.as_str() {
                "/dev/stdout" => Destination::Stdout,
                "/dev/stderr" => Destination::Stderr,
                _ => Destination::File(file.path.into()),
            };
            match &file.access_log_format {
                None => Ok(AccessLog {
                    destination,
                    format: default_format(&here)?,
                }),
                Some(pb::file_log::file_access_log::AccessLogFormat::LogFormat(f)) => Ok(AccessLog {
                    destination,
                    format: format(f, &here.field("log_format"))?,
                }),
                Some(_) => Err(here.error("use log_format")),
            }
        }
        "envoy.extensions.access_loggers.stream.v3.StdoutAccessLog" => {
            let log: pb::stream_log::StdoutAccessLog = unpack(any, &here)?;
            let chosen = log
                .access_log_format
                .map(|stdout_access_log::AccessLogFormat::LogFormat(f)| f);
            stream(Destination::Stdout, chosen.as_ref(), &here)
        }
        "envoy.extensions.access_loggers.stream.v3.StderrAccessLog" => {
            let log: pb::stream_log::StderrAccessLog = unpack(any, &here)?;
            let chosen = log
                .access_log_format
                .map(|stderr_access_log::AccessLogFormat::LogFormat(f)| f);
            stream(Destination::Stderr, chosen.as_ref(), &here)
        }
        other => Err(here.unsupported(other, "use a file, stdout or stderr access log")),
    }
}

fn stream(
    destination: Destination,
    chosen: Option<&pb::core::SubstitutionFormatString>,
    path: &Path<'_>,
) -> Result<AccessLog> {
    let format = match chosen {
        Some(f) => format(f, &path.field("log_format"))?,
        None => default_format(path)?,
    };
    Ok(AccessLog { destination, format })
}

fn default_format(path: &Path<'_>) -> Result<Format> {
    Format::parse_text(ENVOY_DEFAULT).map_err(|e| path.error(e.to_string()))
}

#[expect(deprecated, reason = "`text_format` is still accepted, as Envoy does")]
fn format(value: &pb::core::SubstitutionFormatString, path: &Path<'_>) -> Result<Format> {
    use pb::core::substitution_format_string::Format as Kind;
    match required(value.format.as_ref(), path)? {
        Kind::TextFormat(text) => Format::parse_text(text).map_err(|e| path.field("text_format").error(e.to_string())),
        Kind::TextFormatSource(source) => {
            let here = path.field("text_format_source");
            let text = tls::data_source(source, &here)?;
            let text = std::str::from_utf8(&text).map_err(|_| here.error("is not UTF-8"))?;
            Format::parse_text(text).map_err(|e| here.error(e.to_string()))
        }
        Kind::JsonFormat(fields) => Format::parse_json(&metadata::struct_to_json(fields))
            .map_err(|e| path.field("json_format").error(e.to_string())),
    }
}
