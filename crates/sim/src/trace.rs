// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads and writes traces of a memory's requests, as text or binary.
//!
//! *Text* has one request per line: `R` or `W`, the byte address (decimal, or hexadecimal with
//! `0x`), and optionally its arrival time, in ns with at most three decimals. `#` begins a
//! comment; empty lines are skipped.
//!
//! ```text
//! # kind, address, ns
//! R 0x1f40 0
//! W 8000   12.5
//! ```
//!
//! *Binary* is recognised by its first eight bytes; all numbers are little-endian:
//!
//! | bytes | header |
//! | --- | --- |
//! | 8 | `89 4d 57 54 0d 0a 1a 0a` ([`MAGIC`]) |
//! | 4 | the version, 1 |
//! | 4 | 0 |
//!
//! | bytes | each record |
//! | --- | --- |
//! | 8 | byte address |
//! | 4 | flags: 1 is a write, 2 has a time; no others |
//! | 8 | the time, ps; 0 without the flag |
//!
//! Either all requests of a trace have times, in ascending order, or none has. A reader passes
//! through a trace once and stores nothing of it; its first error ends it.
//!
//! ```
//! use memwarden_sim::trace::{Reader, Request};
//!
//! let text: &[u8] = b"R 0x40 # a read\nW 8000\n";
//! let requests: Vec<Request> = Reader::new(Box::new(text), "my.trace".as_ref())?
//!     .collect::<Result<_, _>>()?;
//! assert_eq!(requests[1], Request { address: 8000, write: true, at_ps: None });
//! # Ok::<(), memwarden_sim::trace::TraceError>(())
//! ```

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Chain, Cursor, Read, Write};
use std::path::{Path, PathBuf};

mod pattern;

pub use pattern::{Pattern, Patterned};

/// The first bytes of a binary trace. The first byte never begins a text, and the line ends in
/// it reveal a file whose line ends were converted.
pub const MAGIC: [u8; 8] = *b"\x89MWT\r\n\x1a\n";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;
const RECORD_BYTES: usize = 20;
const FLAG_WRITE: u32 = 1;
const FLAG_TIMED: u32 = 2;
/// The latest time, 10^6 s: far below any overflow of a sum of times.
const MAX_PS: u64 = 1_000_000_000_000_000_000;
/// A longer line is not a request; the limit bounds the memory for a line.
const MAX_LINE_BYTES: usize = 4096;

/// A request to a memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The address of a byte of its line.
    pub address: u64,
    /// Whether the line is written.
    pub write: bool,
    /// Its arrival time, ps; without one, it arrives as soon as the controller accepts it.
    pub at_ps: Option<u64>,
}

/// The form of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// One request per line.
    Text,
    /// A header, and records of one size.
    Binary,
}

/// A place in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A line of a text, from 1.
    Line(u64),
    /// The record that begins at this byte, from 0.
    Byte(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Byte(byte) => write!(f, "byte {byte}"),
        }
    }
}

/// Why a trace cannot be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The system cannot read it.
    #[error("reading {path}: {cause}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// Its contents are invalid.
    #[error("{path} {place}: {why}")]
    Bad {
        /// The file.
        path: PathBuf,
        /// The place in the file.
        place: Place,
        /// The error, and the allowed values.
        why: String,
    },
}

/// Reads a trace, request after request.
pub struct Reader {
    input: Chain<Cursor<Vec<u8>>, Box<dyn BufRead + Send>>,
    path: PathBuf,
    format: Format,
    capacity_bytes: Option<u64>,
    /// Numbers of lines and bytes read.
    lines: u64,
    bytes: u64,
    line: Vec<u8>,
    /// Records that were read together, and the beginning of the next one.
    records: Vec<u8>,
    next_record: usize,
    /// The last request's time, if they have times; not known before the first request.
    last_ps: Option<Option<u64>>,
    over: bool,
}

impl Reader {
    /// Reads the file `path`.
    ///
    /// # Errors
    /// When it cannot be read, or has an invalid header.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let file = File::open(path).map_err(|cause| TraceError::Read {
            path: path.to_owned(),
            cause,
        })?;
        Self::new(Box::new(BufReader::with_capacity(1 << 16, file)), path)
    }

    /// Reads `input`; errors name it `path`.
    ///
    /// # Errors
    /// When it cannot be read, or has an invalid header.
    pub fn new(mut input: Box<dyn BufRead + Send>, path: &Path) -> Result<Self, TraceError> {
        let failed = |cause| TraceError::Read {
            path: path.to_owned(),
            cause,
        };
        let bad = |byte, why| TraceError::Bad {
            path: path.to_owned(),
            place: Place::Byte(byte),
            why,
        };
        let mut begin = Vec::with_capacity(HEADER_BYTES);
        let mut take = |count: usize, begin: &mut Vec<u8>| {
            let mut part = (&mut input).take(count as u64);
            part.read_to_end(begin).map_err(failed)
        };
        take(MAGIC.len(), &mut begin)?;
        let mut format = Format::Text;
        if begin == MAGIC {
            format = Format::Binary;
            take(HEADER_BYTES - MAGIC.len(), &mut begin)?;
            let word = |at: usize| begin.get(at..at + 4)?.try_into().ok();
            let (Some(version), Some(rest)) = (word(8), word(12)) else {
                let why = format!("the header ends after {} of {HEADER_BYTES}", begin.len());
                return Err(bad(begin.len() as u64, why));
            };
            let version = u32::from_le_bytes(version);
            if version != VERSION {
                return Err(bad(8, format!("version {version}: has to be {VERSION}")));
            }
            if rest != [0; 4] {
                let found = u32::from_le_bytes(rest);
                return Err(bad(12, format!("{found:#x}: has to be 0")));
            }
            begin.clear();
        }
        Ok(Self {
            input: Cursor::new(begin).chain(input),
            path: path.to_owned(),
            format,
            capacity_bytes: None,
            lines: 0,
            bytes: match format {
                Format::Text => 0,
                Format::Binary => HEADER_BYTES as u64,
            },
            line: Vec::new(),
            records: Vec::new(),
            next_record: 0,
            last_ps: None,
            over: false,
        })
    }

    /// The same for a memory of that size: an address beyond it is an error.
    #[must_use]
    pub fn within(mut self, capacity_bytes: u64) -> Self {
        self.capacity_bytes = Some(capacity_bytes);
        self
    }

    /// The form of the trace.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Number of bytes of the trace that were read.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.bytes
    }

    /// The current place: the last line, or the next record's first byte.
    #[must_use]
    pub fn place(&self) -> Place {
        match self.format {
            Format::Text => Place::Line(self.lines),
            Format::Binary => Place::Byte(self.bytes),
        }
    }

    fn failed(&self, cause: io::Error) -> TraceError {
        TraceError::Read {
            path: self.path.clone(),
            cause,
        }
    }

    fn bad(&self, place: Place, why: String) -> TraceError {
        TraceError::Bad {
            path: self.path.clone(),
            place,
            why,
        }
    }

    /// The next line that has a request.
    fn text(&mut self) -> Result<Option<Request>, TraceError> {
        loop {
            self.line.clear();
            let mut part = (&mut self.input).take(MAX_LINE_BYTES as u64 + 1);
            let read = part.read_until(b'\n', &mut self.line);
            let read = read.map_err(|source| self.failed(source))?;
            if read == 0 {
                return Ok(None);
            }
            self.lines += 1;
            self.bytes += read as u64;
            let place = Place::Line(self.lines);
            if read > MAX_LINE_BYTES {
                let why =
                    format!("is longer than {MAX_LINE_BYTES} bytes, the most that a line has");
                return Err(self.bad(place, why));
            }
            match parse_line(&self.line) {
                Ok(None) => {}
                Ok(Some(request)) => return Ok(Some(request)),
                Err(why) => return Err(self.bad(place, why)),
            }
        }
    }

    #[inline]
    fn record(&mut self) -> Result<Option<Request>, TraceError> {
        if self.records.len() - self.next_record < RECORD_BYTES && !self.more_records()? {
            return Ok(None);
        }
        let record = self.records[self.next_record..].first_chunk();
        let request = parse_record(record.expect("a whole record"));
        let request = request.map_err(|why| self.bad(Place::Byte(self.bytes), why))?;
        self.next_record += RECORD_BYTES;
        self.bytes += RECORD_BYTES as u64;
        Ok(Some(request))
    }

    /// Reads the available bytes, at least one record, if there is one.
    #[cold]
    fn more_records(&mut self) -> Result<bool, TraceError> {
        self.records.drain(..self.next_record);
        self.next_record = 0;
        while self.records.len() < RECORD_BYTES {
            let filled = self.records.len();
            match self.input.fill_buf() {
                Ok([]) if filled == 0 => return Ok(false),
                Ok([]) => {
                    let why = format!("the last record has {filled} of its {RECORD_BYTES} bytes");
                    return Err(self.bad(Place::Byte(self.bytes), why));
                }
                Ok(read) => {
                    let count = read.len();
                    self.records.extend_from_slice(read);
                    self.input.consume(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(true)
    }

    /// The place of the request that was read last.
    fn last_place(&self) -> Place {
        match self.format {
            Format::Text => Place::Line(self.lines),
            Format::Binary => Place::Byte(self.bytes - RECORD_BYTES as u64),
        }
    }

    /// Checks a request against the previous ones and its memory.
    #[inline]
    fn judge(&mut self, request: &Request) -> Result<(), String> {
        if let Some(capacity_bytes) = self.capacity_bytes {
            if request.address >= capacity_bytes {
                return Err(format!(
                    "address {:#x} is beyond the memory: has to be from 0 to {:#x}",
                    request.address,
                    capacity_bytes - 1
                ));
            }
        }
        match (self.last_ps, request.at_ps) {
            (Some(Some(_)), None) => {
                return Err("has no time, and those before have: all have to, or none".into());
            }
            (Some(None), Some(_)) => {
                return Err("has a time, and those before have none: all have to, or none".into());
            }
            (Some(Some(last_ps)), Some(at_ps)) if at_ps < last_ps => {
                return Err(format!(
                    "the time {} ns goes back: has to be at least {} ns, the previous request's time",
                    Nanoseconds(at_ps),
                    Nanoseconds(last_ps)
                ));
            }
            _ => {}
        }
        self.last_ps = Some(request.at_ps);
        Ok(())
    }
}

impl Iterator for Reader {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let found = match self.format {
            Format::Text => self.text(),
            Format::Binary => self.record(),
        };
        let judged = found.and_then(|found| match found {
            Some(request) => match self.judge(&request) {
                Ok(()) => Ok(Some(request)),
                Err(why) => Err(self.bad(self.last_place(), why)),
            },
            None => Ok(None),
        });
        self.over = !matches!(judged, Ok(Some(_)));
        judged.transpose()
    }
}

/// Text from a file, for a message: shortened, and on one line.
fn shown(text: &[u8]) -> String {
    let (begin, rest) = text.split_at(text.len().min(40));
    let more = if rest.is_empty() { "" } else { "..." };
    format!("\"{}{more}\"", begin.escape_ascii())
}

fn parse_line(line: &[u8]) -> Result<Option<Request>, String> {
    let line = line.split(|byte| *byte == b'#').next().unwrap_or(line);
    let mut columns = line
        .split(u8::is_ascii_whitespace)
        .filter(|column| !column.is_empty());
    let Some(kind) = columns.next() else {
        return Ok(None);
    };
    let write = match kind {
        b"R" => false,
        b"W" => true,
        _ => return Err(format!("{} is not a kind: has to be R or W", shown(kind))),
    };
    let columns = [columns.next(), columns.next(), columns.next()];
    let (address, time) = match columns {
        [Some(address), time, None] => (address, time),
        [None, ..] => {
            return Err("1 column: has to be R or W, an address, and optionally a time".into());
        }
        [.., Some(more)] => {
            return Err(format!(
                "{} is one column too many: has to be R or W, an address, and optionally a time",
                shown(more)
            ));
        }
    };
    let address = parse_address(address).ok_or_else(|| {
        format!(
            "{} is not an address: has to be a byte address, decimal or with 0x, from 0 to {:#x}",
            shown(address),
            u64::MAX
        )
    })?;
    let at_ps = time.map(|time| {
        parse_time(time).ok_or_else(|| {
            format!(
                "{} is not a time: has to be in ns, from 0 to {}, with at most three decimals",
                shown(time),
                Nanoseconds(MAX_PS)
            )
        })
    });
    Ok(Some(Request {
        address,
        write,
        at_ps: at_ps.transpose()?,
    }))
}

fn parse_address(text: &[u8]) -> Option<u64> {
    let hexadecimal = text.strip_prefix(b"0x").or(text.strip_prefix(b"0X"));
    parse_digits(hexadecimal.unwrap_or(text), hexadecimal.map_or(10, |_| 16))
}

/// Digits only, without a sign.
fn parse_digits(text: &[u8], radix: u32) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |value, byte| {
        let digit = char::from(*byte).to_digit(radix)?;
        value.checked_mul(radix.into())?.checked_add(digit.into())
    })
}

fn parse_time(text: &[u8]) -> Option<u64> {
    let mut parts = text.splitn(2, |byte| *byte == b'.');
    let whole_ps = parse_digits(parts.next()?, 10)?.checked_mul(1000)?;
    let part_ps = match parts.next() {
        None => 0,
        Some(decimals) if decimals.len() > 3 => return None,
        Some(decimals) => parse_digits(decimals, 10)? * 10_u64.pow(3 - decimals.len() as u32),
    };
    whole_ps.checked_add(part_ps).filter(|ps| *ps <= MAX_PS)
}

#[inline]
fn parse_record(record: &[u8; RECORD_BYTES]) -> Result<Request, String> {
    let (address, rest) = record.split_first_chunk().expect("8 of 20 bytes");
    let (flags, rest) = rest.split_first_chunk().expect("4 of 12 bytes");
    let (time, _) = rest.split_first_chunk().expect("8 of 8 bytes");
    let flags = u32::from_le_bytes(*flags);
    let at_ps = u64::from_le_bytes(*time);
    if flags & !(FLAG_WRITE | FLAG_TIMED) != 0 {
        return Err(format!(
            "flags {flags:#x}: has to be the sum of 1 for a write and 2 with a time, or 0"
        ));
    }
    let timed = flags & FLAG_TIMED != 0;
    let most = if timed { MAX_PS } else { 0 };
    if at_ps > most {
        let kind = if timed { "with" } else { "without" };
        return Err(format!(
            "the time is {at_ps} ps: {kind} the flag 2 it has to be from 0 to {most}"
        ));
    }
    Ok(Request {
        address: u64::from_le_bytes(*address),
        write: flags & FLAG_WRITE != 0,
        at_ps: timed.then_some(at_ps),
    })
}

/// A time in ps, shown in ns.
struct Nanoseconds(u64);

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", self.0 / 1000)?;
        match self.0 % 1000 {
            0 => Ok(()),
            part if part % 100 == 0 => write!(f, ".{}", part / 100),
            part if part % 10 == 0 => write!(f, ".{:02}", part / 10),
            part => write!(f, ".{part:03}"),
        }
    }
}

/// Writes a trace, request after request.
pub struct Writer<W> {
    output: W,
    format: Format,
}

impl<W: Write> Writer<W> {
    /// Writes to `output`, which should be buffered.
    ///
    /// # Errors
    /// When the header can't be written.
    pub fn new(mut output: W, format: Format) -> io::Result<Self> {
        match format {
            Format::Text => writeln!(output, "# R or W, byte address, and perhaps ns")?,
            Format::Binary => {
                output.write_all(&MAGIC)?;
                output.write_all(&VERSION.to_le_bytes())?;
                output.write_all(&[0; 4])?;
            }
        }
        Ok(Self { output, format })
    }

    /// Writes a request. The caller ensures that times are in ascending order, and that all
    /// requests have one or none has.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&mut self, request: &Request) -> io::Result<()> {
        let Request {
            address,
            write,
            at_ps,
        } = *request;
        match self.format {
            Format::Text => {
                let kind = if write { 'W' } else { 'R' };
                write!(self.output, "{kind} {address:#x}")?;
                if let Some(at_ps) = at_ps {
                    write!(self.output, " {}", Nanoseconds(at_ps))?;
                }
                writeln!(self.output)
            }
            Format::Binary => {
                let write = if write { FLAG_WRITE } else { 0 };
                let timed = at_ps.map_or(0, |_| FLAG_TIMED);
                let mut record = [0; RECORD_BYTES];
                record[..8].copy_from_slice(&address.to_le_bytes());
                record[8..12].copy_from_slice(&(write | timed).to_le_bytes());
                record[12..].copy_from_slice(&at_ps.unwrap_or(0).to_le_bytes());
                self.output.write_all(&record)
            }
        }
    }

    /// Writes the buffered records, and returns the output.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        self.output.flush()?;
        Ok(self.output)
    }
}

#[cfg(test)]
mod tests;
