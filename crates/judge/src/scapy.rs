//! Scapy as IPsec peer: scripts in `tests/scapy` run `testudo replay` on packet files written by Scapy, and
//! check the resulting packets with Scapy.
//!
//! ```text
//!   inner packets ── testudo replay ── ESP ── Scapy opens ── the same inner packets?
//!   inner packets ── Scapy seals ── ESP, among attacks ── testudo replay ── the same inner packets, the drops as expected?
//! ```
//!
//! One Python process judges one configuration, with any number of tunnels and packets. It uses Scapy's own
//! `SecurityAssociation`, on OpenSSL's cryptography: no code of ours takes part in the verdict. Three
//! algorithms that it lacks are written down in `tests/scapy/algorithms.py`, from their RFCs and on the same
//! ciphers.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Debian's Python, which Debian's Scapy is installed for.
const PYTHON: &str = "/usr/bin/python3";
/// What the scripts need: a Python package, and the Debian package that contains it.
const NEEDED: [(&str, &str); 2] =
    [("scapy.layers.ipsec", "python3-scapy"), ("cryptography", "python3-cryptography")];

/// What went wrong. The text is meant to be read as a test's failure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScapyError {
    /// Python itself is missing.
    #[error("{PYTHON} cannot be run ({0}): install the package python3")]
    NoPython(#[source] io::Error),
    /// Python cannot import what the scripts need.
    #[error(
        "{PYTHON} cannot import {module}: install the package {package} (tests/packages-scapy.txt)\n{said}"
    )]
    NotInstalled {
        /// The Python package.
        module: &'static str,
        /// The Debian package.
        package: &'static str,
        /// Python's message.
        said: String,
    },
    /// The judge found a difference.
    #[error("{said}\nto repeat it: {command}")]
    Verdict {
        /// The judge's output: the case, and the first packet that differs.
        said: String,
        /// A command line that repeats the case.
        command: String,
    },
}

/// A Scapy that is known to work.
#[derive(Debug)]
pub struct Scapy {
    scripts: PathBuf,
}

impl Scapy {
    /// Checks that Python can import the modules that the scripts in the folder `scripts` need.
    ///
    /// # Errors
    /// [`ScapyError::NoPython`] or [`ScapyError::NotInstalled`], which names the package to install.
    pub fn find(scripts: &Path) -> Result<Self, ScapyError> {
        NEEDED.into_iter().try_for_each(|(module, package)| look_for(module, package))?;
        Ok(Self { scripts: scripts.canonicalize().unwrap_or_else(|_| scripts.to_owned()) })
    }

    /// Scapy's version, as 2.5.0.
    ///
    /// # Errors
    /// [`ScapyError::NoPython`], if it has gone meanwhile.
    pub fn version(&self) -> Result<String, ScapyError> {
        let output = run(Command::new(PYTHON).args(["-c", "import scapy; print(scapy.__version__)"]))?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Runs a script that judges the program `testudo`; returns the script's summary.
    ///
    /// # Errors
    /// [`ScapyError::Verdict`] says what differs and how to repeat it.
    pub fn judge(&self, script: &str, testudo: &Path, arguments: &[&OsStr]) -> Result<String, ScapyError> {
        let mut command = Command::new(PYTHON);
        // Write no compiled files next to the sources.
        command.arg("-B").arg(self.scripts.join(script)).arg(testudo).args(arguments);
        let output = run(&mut command)?;
        let said = [output.stdout, output.stderr].map(|s| String::from_utf8_lossy(&s).trim().to_owned());
        if output.status.success() {
            let [said, _] = said;
            return Ok(said);
        }
        Err(ScapyError::Verdict { said: said.join("\n"), command: command_line(&command) })
    }
}

/// Checks that Python can import `module`, which is in the Debian package `package`.
fn look_for(module: &'static str, package: &'static str) -> Result<(), ScapyError> {
    let output = run(Command::new(PYTHON).args(["-c", &format!("import {module}")]))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(ScapyError::NotInstalled { module, package, said })
}

fn run(command: &mut Command) -> Result<Output, ScapyError> {
    command.output().map_err(ScapyError::NoPython)
}

/// The command as typed in a shell; only spaces need quoting in any of its words.
fn command_line(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let quoted = words.map(|word| match word.to_string_lossy() {
        word if word.contains(' ') => format!("'{word}'"),
        word => word.into_owned(),
    });
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(script: &str) -> (PathBuf, Scapy) {
        let path = std::env::temp_dir().join(format!("testudo-scapy-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("script.py"), script).unwrap();
        (path.clone(), Scapy { scripts: path })
    }

    #[test]
    fn a_verdict_carries_what_was_said_and_the_command_to_repeat_it() {
        let (path, scapy) = folder(
            "import sys\nprint(*sys.argv[1:])\nsys.exit('different' if sys.argv[2] == 'bad' else 0)\n",
        );
        assert_eq!(scapy.judge("script.py", Path::new("/t"), &["good"].map(OsStr::new)).unwrap(), "/t good");
        let error = scapy
            .judge("script.py", Path::new("/t"), &["bad", "two words"].map(OsStr::new))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("/t bad two words\ndifferent\nto repeat it: /usr/bin/python3 -B "),
            "{error}"
        );
        assert!(error.ends_with("script.py /t bad 'two words'"), "{error}");
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_module_that_python_lacks_is_named_with_its_package_and_what_python_said() {
        look_for("json.decoder", "python3").unwrap();
        let error = look_for("testudo_no_such_module.ipsec", "python3-scapy").unwrap_err().to_string();
        assert!(error.contains("cannot import testudo_no_such_module.ipsec"), "{error}");
        assert!(error.contains("install the package python3-scapy"), "{error}");
        assert!(error.ends_with("ModuleNotFoundError: No module named 'testudo_no_such_module'"), "{error}");
    }
}
