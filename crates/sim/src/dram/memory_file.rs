// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memories as TOML files: those that come with the program, and the user's own.
//!
//! A file is checked as a whole: every invalid field is reported with its line and its allowed
//! values.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memwarden_machines::{Fault, Listed};
use memwarden_platform::settings_file;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::energy::Currents;
use super::mapping::{AddressMap, Mapping};
use super::memory::{Field, Memory, Organisation, Standard, Supply, Timings};

/// The memories that come with the program: name and file.
const BUILT_IN: [(&str, &str); 9] = [
    ("ddr2-800", include_str!("../../memories/ddr2-800.toml")),
    ("ddr3-1333", include_str!("../../memories/ddr3-1333.toml")),
    ("ddr4-2400", include_str!("../../memories/ddr4-2400.toml")),
    ("ddr5-4800", include_str!("../../memories/ddr5-4800.toml")),
    ("lpddr2-900", include_str!("../../memories/lpddr2-900.toml")),
    (
        "lpddr3-1600",
        include_str!("../../memories/lpddr3-1600.toml"),
    ),
    (
        "lpddr4-3200",
        include_str!("../../memories/lpddr4-3200.toml"),
    ),
    (
        "lpddr5-6400",
        include_str!("../../memories/lpddr5-6400.toml"),
    ),
    ("hbm3-6400", include_str!("../../memories/hbm3-6400.toml")),
];

/// The maximum number of chips in a rank.
const MAX_CHIPS: u64 = 64;

/// Why a memory cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The file cannot be read.
    #[error("reading {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file has invalid values.
    #[error("{}", Listed(.path, .faults))]
    Faults {
        /// The file.
        path: PathBuf,
        /// All of its errors.
        faults: Vec<Fault>,
    },
    /// No memory of that name comes with the program.
    #[error("there is no memory \"{name}\"; there are {}", names().collect::<Vec<_>>().join(", "))]
    Unknown {
        /// The requested name.
        name: String,
    },
}

/// The names of the memories that come with the program.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|memory| memory.0)
}

impl Memory {
    /// A memory that comes with the program.
    ///
    /// # Errors
    /// When there is no memory of that name.
    pub fn named(name: &str) -> Result<Self, MemoryError> {
        let known = BUILT_IN.iter().find(|memory| memory.0 == name);
        let (name, text) = known.ok_or_else(|| MemoryError::Unknown { name: name.into() })?;
        Self::parse(Path::new(name), text)
    }

    /// A memory from a file.
    ///
    /// # Errors
    /// When the file cannot be read or is invalid.
    pub fn read(path: &Path) -> Result<Self, MemoryError> {
        let text = settings_file::read_again(path).map_err(|source| MemoryError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(path, &text)
    }

    /// A memory from the text of the file `path`.
    ///
    /// # Errors
    /// All errors in the text.
    pub fn parse(path: &Path, text: &str) -> Result<Self, MemoryError> {
        let mut reader = Reader {
            text,
            faults: Vec::new(),
        };
        let memory = match DeTable::parse(text) {
            Ok(table) => reader.memory(table.get_ref()),
            Err(error) => {
                reader.faults.push(Fault::syntax(text, &error));
                None
            }
        };
        match memory {
            Some(memory) if reader.faults.is_empty() => Ok(memory),
            _ => {
                reader.faults.sort_by_key(|fault| fault.line);
                Err(MemoryError::Faults {
                    path: path.to_owned(),
                    faults: reader.faults,
                })
            }
        }
    }
}

type Entry<'t> = Spanned<DeValue<'t>>;

struct Reader<'a> {
    text: &'a str,
    faults: Vec<Fault>,
}

impl Reader<'_> {
    fn fault(&mut self, at: usize, field: &str, why: impl Into<String>) {
        self.faults.push(Fault::at(self.text, at, field, why));
    }

    /// Reports unknown keys.
    fn only<'k>(&mut self, table: &DeTable, prefix: &str, known: impl Iterator<Item = &'k str>) {
        let known: Vec<&str> = known.collect();
        for key in table.keys() {
            if !known.contains(&key.get_ref().as_ref()) {
                let field = format!("{prefix}{}", key.get_ref());
                let why = format!("is not known; known are {}", known.join(", "));
                self.fault(key.span().start, &field, why);
            }
        }
    }

    fn memory(&mut self, file: &DeTable) -> Option<Memory> {
        let tables = ["organisation", "timings", "mapping"];
        let known = ["name", "standard", "currents"].into_iter();
        self.only(file, "", known.chain(tables));
        let name = self.name(file);
        let standard = self.standard(file);
        let [organisation, timings, mapping] = tables.map(|name| {
            let entry = file.get(name);
            let table =
                entry.and_then(|entry| Some((entry.span().start, entry.get_ref().as_table()?)));
            if table.is_none() {
                let at = entry.map_or(0, |entry| entry.span().start);
                self.fault(at, name, format!("has to be a table [{name}]"));
            }
            table
        });
        let organisation = organisation.map(|(at, table)| {
            let fields = Organisation::FIELDS;
            self.fields(at, table, "organisation.", fields, 1, "a power of two")
        })?;
        // A time in clocks needs the clock, which is checked with the other fields.
        let timings = timings.map(|(at, table)| {
            let tck = table.get("tck").and_then(|entry| whole(entry.get_ref(), 0));
            let kind = "whole ps, or \"Nck\" in clocks,";
            let fields = Timings::FIELDS;
            self.fields(at, table, "timings.", fields, tck.unwrap_or(0), kind)
        })?;
        let currents = file.get("currents").map(|entry| self.currents(entry));
        let (at, table) = mapping?;
        let mapping = self.mapping(at, table)?;
        if let Some(standard) = standard.filter(|_| self.faults.is_empty()) {
            self.together(file, standard, &organisation, &timings, &mapping);
        }
        Some(Memory {
            name: name?,
            standard: standard?,
            organisation,
            timings,
            mapping,
            currents,
        })
    }

    /// The number of chips, and a table for each supply.
    fn currents(&mut self, entry: &Entry) -> Currents {
        let mut currents = Currents {
            chips: 0,
            supplies: BTreeMap::new(),
        };
        let table = entry.get_ref().as_table();
        for (name, value) in table.into_iter().flatten() {
            let at = value.span().start;
            if name.get_ref() == "chips" {
                currents.chips = whole(value.get_ref(), 0).unwrap_or(0);
            } else if let Some(table) = value.get_ref().as_table() {
                let prefix = format!("currents.{}.", name.get_ref());
                let kind = "whole uA (mv: mV)";
                let supply = self.fields(at, table, &prefix, Supply::FIELDS, 0, kind);
                currents.supplies.insert(name.get_ref().to_string(), supply);
            } else {
                let field = format!("currents.{}", name.get_ref());
                self.fault(at, &field, "has to be a supply's table, or chips");
            }
        }
        let at = entry.span().start;
        if !(1..=MAX_CHIPS).contains(&currents.chips) {
            let why = format!("has to be the chips of a rank, from 1 to {MAX_CHIPS}");
            self.fault(at, "currents.chips", why);
        }
        if currents.supplies.is_empty() {
            let why = "has to have a table for each supply, as [currents.vdd]";
            self.fault(at, "currents", why);
        }
        currents
    }

    fn name(&mut self, file: &DeTable) -> Option<String> {
        let entry = file.get("name");
        let name = entry.and_then(|entry| entry.get_ref().as_str());
        if name.is_none_or(str::is_empty) {
            let at = entry.map_or(0, |entry| entry.span().start);
            self.fault(at, "name", "has to be a text");
            return None;
        }
        name.map(str::to_owned)
    }

    fn standard(&mut self, file: &DeTable) -> Option<Standard> {
        let entry = file.get("standard");
        let name = entry.and_then(|entry| entry.get_ref().as_str());
        let known = Standard::NAMES.iter().find(|known| Some(known.0) == name);
        if known.is_none() {
            let names = Standard::NAMES.map(|known| known.0).join(", ");
            let at = entry.map_or(0, |entry| entry.span().start);
            self.fault(at, "standard", format!("has to be one of {names}"));
        }
        known.map(|known| known.1)
    }

    fn fields<T: Default>(
        &mut self,
        at: usize,
        table: &DeTable,
        prefix: &str,
        fields: &[Field<T>],
        tck: u64,
        kind: &str,
    ) -> T {
        self.only(table, prefix, fields.iter().map(|field| field.name));
        let mut all = T::default();
        for field in fields {
            let Field { name, min, max, .. } = field;
            let entry: Option<&Entry> = table.get(*name);
            let value = entry.and_then(|entry| whole(entry.get_ref(), tck));
            let allowed = value.filter(|value| {
                (*min..=*max).contains(value) && (!field.power_of_two || value.is_power_of_two())
            });
            if let Some(value) = allowed {
                (field.set)(&mut all, value);
                continue;
            }
            let found = match (entry, value) {
                (None, _) => "is missing: ".to_owned(),
                (Some(_), Some(value)) => format!("is {value}: "),
                (Some(_), None) => String::new(),
            };
            let at = entry.map_or(at, |entry| entry.span().start);
            let why = format!("{found}has to be {kind} from {min} to {max}");
            self.fault(at, &format!("{prefix}{name}"), why);
        }
        all
    }

    fn mapping(&mut self, at: usize, table: &DeTable) -> Option<Mapping> {
        self.only(table, "mapping.", ["order", "bank_hash"].into_iter());
        let entry: Option<&Entry> = table.get("order");
        let order = entry
            .and_then(|entry| entry.get_ref().as_array())
            .and_then(|array| {
                let texts = array
                    .iter()
                    .map(|text| text.get_ref().as_str().map(str::to_owned));
                texts.collect::<Option<Vec<String>>>()
            });
        if order.is_none() {
            let at = entry.map_or(at, |entry| entry.span().start);
            self.fault(at, "mapping.order", "has to be a list of fields' names");
        }
        let entry: Option<&Entry> = table.get("bank_hash");
        let bank_hash = entry.and_then(|entry| entry.get_ref().as_bool());
        if bank_hash.is_none() {
            let at = entry.map_or(at, |entry| entry.span().start);
            self.fault(at, "mapping.bank_hash", "has to be true or false");
        }
        Some(Mapping {
            order: order?,
            bank_hash: bank_hash?,
        })
    }

    /// Each field's own range is checked already; these are the conditions on several fields
    /// together.
    fn together(
        &mut self,
        file: &DeTable,
        standard: Standard,
        organisation: &Organisation,
        timings: &Timings,
        mapping: &Mapping,
    ) {
        let at = |table: &str, field: &str| {
            let table = file.get(table).and_then(|entry| entry.get_ref().as_table());
            table
                .and_then(|table| table.get(field))
                .map_or(0, |entry| entry.span().start)
        };
        if organisation.bursts_per_row() == 0 {
            let why = "has to be at most organisation.columns";
            self.fault(
                at("organisation", "burst_length"),
                "organisation.burst_length",
                why,
            );
            return;
        }
        let (transfers, least) = (organisation.burst_length, standard.transfers_per_clock());
        if transfers < least {
            let why = format!("is {transfers}: has to be at least {least}, a clock's transfers");
            self.fault(
                at("organisation", "burst_length"),
                "organisation.burst_length",
                why,
            );
        }
        if organisation.banks_per_channel() > 64 {
            let why = "ranks x bank_groups x banks has to be at most 64";
            self.fault(at("organisation", "banks"), "organisation.banks", why);
        }
        if let Err(error) = AddressMap::new(organisation, mapping) {
            self.fault(at("mapping", "order"), "mapping.order", error.to_string());
        }
        let pairs = [
            ("tras", timings.tras, "trcd", timings.trcd),
            ("trc", timings.trc, "tras", timings.tras),
            ("tccd_l", timings.tccd_l, "tccd_s", timings.tccd_s),
            ("tccd_l_wr", timings.tccd_l_wr, "tccd_s", timings.tccd_s),
            ("trrd_l", timings.trrd_l, "trrd_s", timings.trrd_s),
            ("tfaw", timings.tfaw, "trrd_s", timings.trrd_s),
            ("twtr_l", timings.twtr_l, "twtr_s", timings.twtr_s),
        ];
        for (name, value, least_name, least) in pairs {
            if value < least {
                let why = format!("is {value}: has to be at least {least_name} = {least}");
                self.fault(at("timings", name), &format!("timings.{name}"), why);
            }
        }
        let burst_ps = transfers / least * timings.tck;
        let least_ps = timings.least_trefi_ps(burst_ps);
        if timings.trefi < least_ps {
            let why = format!(
                "is {}: has to be at least {least_ps}, so that a rank has time for a request between two REFs: trfc + trp + the longest of trc, a read and a write with twr, in whole clocks",
                timings.trefi
            );
            self.fault(at("timings", "trefi"), "timings.trefi", why);
        }
    }
}

/// A whole number, or clocks of `tck`.
fn whole(value: &DeValue, tck: u64) -> Option<u64> {
    match value {
        DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
        DeValue::String(text) => {
            let clocks: u64 = text.strip_suffix("ck")?.parse().ok()?;
            clocks.checked_mul(tck).filter(|_| tck > 0)
        }
        _ => None,
    }
}
