// SPDX-License-Identifier: MIT OR Apache-2.0
//! samples.parquet: the columns of samples.csv, typed.
//!
//! An Arrow reader sees `case, role, metric, unit: string`, `repeat, cpu: uint32`, `value: double`, `t_ns: uint64`;
//! `cpu`, `value` and `t_ns` may be null. The file is written through the format's own column writers: the `arrow`
//! crates would take several times as long to compile and write the same file.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use memwarden_run::{Recorded, Sample};
use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};

use crate::Error;

/// Samples in a row group: some tens of megabytes, the usual size for readers.
const ROW_GROUP: usize = 1 << 20;

/// Writes samples.parquet into the run folder and returns its path.
///
/// # Errors
/// The file cannot be written.
pub fn write(recorded: &Recorded) -> Result<PathBuf, Error> {
    let path = recorded.directory.join("samples.parquet");
    let failed = |source| Error::Io {
        action: "write",
        path: path.clone(),
        source,
    };
    let file = File::create(&path).map_err(failed)?;
    write_all(&recorded.samples, file).map_err(|e| failed(std::io::Error::other(e)))?;
    Ok(path)
}

fn write_all(samples: &[Sample], file: File) -> Result<(), ParquetError> {
    let properties = Arc::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(file, schema()?, properties)?;
    for rows in samples.chunks(ROW_GROUP) {
        let mut group = writer.next_row_group()?;
        let text = |of: fn(&Sample) -> &str| rows.iter().map(move |s| Some(ByteArray::from(of(s))));
        // The format stores unsigned numbers as signed ones with the same bits.
        column::<ByteArrayType>(&mut group, text(|s| &s.case), false)?;
        column::<Int32Type>(
            &mut group,
            rows.iter().map(|s| Some(s.repeat as i32)),
            false,
        )?;
        column::<ByteArrayType>(&mut group, text(|s| &s.role), false)?;
        column::<Int32Type>(
            &mut group,
            rows.iter().map(|s| s.cpu.map(|cpu| cpu as i32)),
            true,
        )?;
        column::<ByteArrayType>(&mut group, text(|s| &s.metric), false)?;
        column::<ByteArrayType>(&mut group, text(|s| &s.unit), false)?;
        column::<DoubleType>(&mut group, rows.iter().map(|s| s.value), true)?;
        column::<Int64Type>(
            &mut group,
            rows.iter().map(|s| s.t_ns.map(|t_ns| t_ns as i64)),
            true,
        )?;
        group.close()?;
    }
    writer.close()?;
    Ok(())
}

/// [`memwarden_run::COLUMNS`] with their types.
fn schema() -> Result<TypePtr, ParquetError> {
    let unsigned = |bit_width| LogicalType::Integer {
        bit_width,
        is_signed: false,
    };
    let fields = memwarden_run::COLUMNS.map(|name| {
        let (physical, logical) = match name {
            "repeat" | "cpu" => (Physical::INT32, Some(unsigned(32))),
            "value" => (Physical::DOUBLE, None),
            "t_ns" => (Physical::INT64, Some(unsigned(64))),
            _ => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        };
        let optional = matches!(name, "cpu" | "value" | "t_ns");
        let repetition = if optional {
            Repetition::OPTIONAL
        } else {
            Repetition::REQUIRED
        };
        let field = Type::primitive_type_builder(name, physical);
        field
            .with_logical_type(logical)
            .with_repetition(repetition)
            .build()
            .map(Arc::new)
    });
    let fields = fields.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(Arc::new(
        Type::group_type_builder("samples")
            .with_fields(fields)
            .build()?,
    ))
}

/// Writes the next column: the present values and, if `nullable`, a level for each row that tells whether it has one.
fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    values: impl Iterator<Item = Option<T::T>>,
    nullable: bool,
) -> Result<(), ParquetError> {
    let (mut present, mut levels) = (Vec::new(), Vec::new());
    for value in values {
        levels.push(i16::from(value.is_some()));
        present.extend(value);
    }
    let Some(mut column) = group.next_column()? else {
        return Err(ParquetError::General(
            "fewer columns than the schema has".into(),
        ));
    };
    column
        .typed::<T>()
        .write_batch(&present, nullable.then_some(levels.as_slice()), None)?;
    column.close()
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;

    use super::*;

    #[test]
    fn samples_come_back() {
        let samples = [
            Sample::new("solo, \u{d7}", 0, "victim", "latency_ns", "ns", 1.0 / 3.0)
                .on_cpu(3)
                .at_ns(u64::MAX),
            Sample::new("x", u32::MAX, "guard", "overshoot_events", "events", None),
        ];
        let file = tempfile::tempfile().unwrap();
        write_all(&samples, file.try_clone().unwrap()).unwrap();
        let reader = SerializedFileReader::new(file).unwrap();
        let rows: Vec<_> = reader
            .get_row_iter(None)
            .unwrap()
            .map(Result::unwrap)
            .collect();
        let back = rows.iter().map(|row| {
            let text = |column| row.get_string(column).unwrap().clone();
            let repeat = row.get_uint(1).unwrap();
            let value = row.get_double(6).ok();
            let mut sample = Sample::new(text(0), repeat, text(2), text(4), text(5), value);
            sample.cpu = row.get_uint(3).ok();
            sample.t_ns = row.get_ulong(7).ok();
            sample
        });
        assert_eq!(back.collect::<Vec<_>>(), samples);
    }
}
