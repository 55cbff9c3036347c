//! What makes columns fit to be a graph: lengths, values, indices, and sums that 64 bits hold.

use crate::UNLIMITED;
use crate::error::{Error, Result};
use crate::graph::Columns;

/// Checks lengths, values, indices and sums; answers the number of device kinds.
///
/// # Errors
/// [`Error::Shape`], [`Error::Value`] or [`Error::Overflow`], with the name of the column.
pub(crate) fn check_columns(
    columns: &Columns,
    num_ops: usize,
    num_tensors: usize,
) -> Result<usize> {
    if num_ops >= i32::MAX as usize || num_tensors >= i32::MAX as usize {
        return Err(Error::Overflow { what: "number of ops or tensors" });
    }
    let num_kinds = columns.compute_ns.len().checked_div(num_ops).unwrap_or(1);
    let lengths = [
        ("compute_ns", columns.compute_ns.len(), num_kinds.max(1) * num_ops),
        ("scratch_bytes", columns.scratch_bytes.len(), num_ops),
        ("group", columns.group.len(), num_ops),
        ("allowed_set", columns.allowed_set.len(), num_ops),
        ("role", columns.role.len(), num_ops),
        ("forward_op", columns.forward_op.len(), num_ops),
        ("tensor_bytes", columns.tensor_bytes.len(), num_tensors),
        ("tensor_transfer_ns", columns.tensor_transfer_ns.len(), num_tensors),
        ("tensor_class", columns.tensor_class.len(), num_tensors),
        ("edge_consumer", columns.edge_consumer.len(), columns.edge_tensor.len()),
    ];
    for (what, found, expected) in lengths {
        if found != expected {
            return Err(Error::Shape { what, expected, found });
        }
    }
    check_least("compute_ns", &columns.compute_ns, -1)?;
    check_least("persistent_bytes", &columns.persistent_bytes, 0)?;
    check_least("scratch_bytes", &columns.scratch_bytes, 0)?;
    check_least("tensor_bytes", &columns.tensor_bytes, 0)?;
    check_least("tensor_transfer_ns", &columns.tensor_transfer_ns, -1)?;
    check_indices("group", &columns.group, -1, i32::MAX as usize)?;
    check_indices("allowed_set", &columns.allowed_set, -1, i32::MAX as usize)?;
    check_indices("forward_op", &columns.forward_op, -1, num_ops)?;
    check_indices("tensor_producer", &columns.tensor_producer, 0, num_ops)?;
    check_indices("edge_tensor", &columns.edge_tensor, 0, num_tensors)?;
    check_indices("edge_consumer", &columns.edge_consumer, 0, num_ops)?;
    if columns.edge_tensor.len() >= u32::MAX as usize {
        return Err(Error::Overflow { what: "number of edges" });
    }
    let num_groups = columns.group.iter().max().map_or(0, |most| most.saturating_add(1));
    if usize::try_from(num_groups).unwrap_or(0) > num_ops {
        return Err(Error::Shape {
            what: "group numbers",
            expected: num_ops,
            found: usize::try_from(num_groups).unwrap_or(0),
        });
    }
    check_sums(columns, num_ops)?;
    Ok(num_kinds)
}

fn check_least(what: &'static str, column: &[i64], least: i64) -> Result<()> {
    match column.iter().position(|value| *value < least) {
        Some(index) => Err(Error::Value { what, index, value: column[index] }),
        None => Ok(()),
    }
}

fn check_indices(what: &'static str, column: &[i32], least: i32, end: usize) -> Result<()> {
    let bad = |value: &i32| *value < least || usize::try_from(*value).is_ok_and(|v| v >= end);
    match column.iter().position(bad) {
        Some(index) => Err(Error::Value { what, index, value: i64::from(column[index]) }),
        None => Ok(()),
    }
}

/// A copy of a tensor may be held for every consumer; each op may take its longest time.
fn check_sums(columns: &Columns, num_ops: usize) -> Result<()> {
    let sum = |column: &[i64]| -> i128 { column.iter().map(|value| i128::from(*value)).sum() };
    let copies = columns
        .edge_tensor
        .iter()
        .map(|at| columns.tensor_bytes[usize::try_from(*at).expect("checked")]);
    let mut total = copies.map(i128::from).sum::<i128>();
    for (what, column) in [
        ("persistent_bytes", &columns.persistent_bytes),
        ("scratch_bytes", &columns.scratch_bytes),
        ("tensor_bytes", &columns.tensor_bytes),
    ] {
        let bytes = sum(column);
        total += bytes;
        if bytes >= i128::from(UNLIMITED) {
            return Err(Error::Overflow { what });
        }
    }
    if total >= i128::from(UNLIMITED) {
        return Err(Error::Overflow { what: "all bytes, with a copy per consumer," });
    }
    for row in columns.compute_ns.chunks(num_ops.max(1)) {
        if sum(row) >= i128::from(UNLIMITED) * 2 {
            return Err(Error::Overflow { what: "compute_ns" });
        }
    }
    Ok(())
}
