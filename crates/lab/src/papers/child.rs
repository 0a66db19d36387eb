//! Measurements by the program as a process of its own, which enters private namespaces.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::bench::{BenchError, NO_ENGINE, NOT_POSSIBLE};
use crate::error::{LabError, io};

/// Who says it, in front of what is said.
const SPEAKER: &str = "testudo lab: ";

/// Runs a command of this program; its rows. It ends with the thread that waits for it, however that ends.
///
/// # Errors
/// [`BenchError::NotPossible`] and [`BenchError::Engine`] by the process's exit code, with what it says;
/// [`BenchError::Invalid`] if it failed in another way.
pub(super) fn rows(command: &str) -> Result<Value, BenchError> {
    let program = std::env::current_exe().map_err(io("find the program's own file"))?;
    let output = Command::new("setpriv")
        .args(["--pdeathsig", "KILL"])
        .arg(program)
        .args(command.split_whitespace())
        .arg("--json")
        .stdin(Stdio::null())
        .output();
    match output {
        Ok(output) => of(command, &output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(LabError::MissingProgram { program: "setpriv", package: "util-linux" }.into())
        }
        Err(error) => Err(io("start setpriv")(error).into()),
    }
}

/// The rows that a process printed.
fn of(command: &str, output: &Output) -> Result<Value, BenchError> {
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().map(|line| line.strip_prefix(SPEAKER).unwrap_or(line)).collect();
    let said = lines.join("; ");
    let code = output.status.code().and_then(|code| u8::try_from(code).ok());
    let failed = |what: String| Err(BenchError::Invalid { case: format!("testudo {command}"), what });
    match code {
        Some(0) => match serde_json::from_slice(&output.stdout) {
            Ok(rows) => Ok(rows),
            Err(error) => failed(format!("it prints no JSON: {error}")),
        },
        Some(NOT_POSSIBLE) => Err(BenchError::NotPossible(said)),
        Some(NO_ENGINE) => Err(BenchError::Engine(said)),
        _ => failed(format!("{}: {said}", output.status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a shell does in the place of the program.
    fn ended(script: &str) -> Result<Value, BenchError> {
        of("lab tcp", &Command::new("sh").args(["-c", script]).output().unwrap())
    }

    #[test]
    fn the_exit_code_tells_what_a_machine_lacks_from_what_failed() {
        assert_eq!(ended("echo '[1]'").unwrap(), serde_json::json!([1]));
        let say = "echo 'testudo lab: no namespaces' >&2; echo 'allow them' >&2; exit";
        match ended(&format!("{say} 4")).unwrap_err() {
            BenchError::NotPossible(reason) => assert_eq!(reason, "no namespaces; allow them"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(ended(&format!("{say} 5")), Err(BenchError::Engine(_))));
        for (script, told) in [
            (format!("{say} 1"), "no namespaces; allow them"),
            (format!("{say} 2"), "exit status: 2"),
            ("kill -9 $$".to_owned(), "signal: 9"),
            ("echo no rows".to_owned(), "it prints no JSON"),
        ] {
            match ended(&script).unwrap_err() {
                BenchError::Invalid { case, what } => {
                    assert!(case == "testudo lab tcp" && what.contains(told), "{script}: {what}");
                }
                other => panic!("{script}: {other:?}"),
            }
        }
    }
}
