//! Parsed source files of the workspace, module by module.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use syn::{Attribute, File, Item, ItemMod, Meta};

/// One crate of the workspace.
pub struct Crate {
    /// Name of the crate's folder.
    pub name: String,
    /// Modules by path from the crate's root; the root has the empty path.
    pub modules: BTreeMap<Vec<String>, Module>,
}

/// One module that has a file of its own.
pub struct Module {
    /// File of the module, relative to the workspace.
    pub file: PathBuf,
    /// Parsed contents of the file.
    pub syntax: File,
}

/// Parses `src/` of every crate below `root/crates`. Skips modules that exist for tests only.
pub fn workspace(root: &Path) -> io::Result<Vec<Crate>> {
    let mut folders: Vec<PathBuf> = fs::read_dir(root.join("crates"))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    folders.sort();
    let crates = folders.iter().filter(|folder| folder.is_dir());
    crates.map(|folder| parse_crate(root, folder)).collect()
}

fn parse_crate(root: &Path, folder: &Path) -> io::Result<Crate> {
    let mut modules = BTreeMap::new();
    let src = folder.join("src");
    for file in ["lib.rs", "main.rs"].map(|name| src.join(name)) {
        if file.exists() {
            parse_module(root, &file, &src, Vec::new(), &mut modules)?;
        }
    }
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    Ok(Crate {
        name: name.into_owned(),
        modules,
    })
}

/// Parses a module's file and, recursively, the files of its children in `children`.
fn parse_module(
    root: &Path,
    file: &Path,
    children: &Path,
    path: Vec<String>,
    modules: &mut BTreeMap<Vec<String>, Module>,
) -> io::Result<()> {
    let text = fs::read_to_string(file)?;
    let syntax = syn::parse_file(&text)
        .map_err(|error| io::Error::other(format!("{}: {error}", file.display())))?;
    for item in &syntax.items {
        let Item::Mod(child) = item else { continue };
        if child.content.is_some() || is_test_only(&child.attrs) {
            continue;
        }
        let name = child.ident.to_string();
        let file = file_of(children, child, &name);
        let mut below = path.clone();
        below.push(name.clone());
        parse_module(root, &file, &children.join(&name), below, modules)?;
    }
    let file = file.strip_prefix(root).unwrap_or(file).to_owned();
    modules.insert(path, Module { file, syntax });
    Ok(())
}

fn file_of(children: &Path, module: &ItemMod, name: &str) -> PathBuf {
    let explicit = module
        .attrs
        .iter()
        .find_map(|attribute| match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
                syn::Expr::Lit(syn::ExprLit {
                    lit: syn::Lit::Str(path),
                    ..
                }) => Some(children.join(path.value())),
                _ => None,
            },
            _ => None,
        });
    explicit.unwrap_or_else(|| {
        let flat = children.join(format!("{name}.rs"));
        if flat.exists() {
            flat
        } else {
            children.join(name).join("mod.rs")
        }
    })
}

/// Returns whether an item is compiled for tests only.
pub(crate) fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => list
            .tokens
            .clone()
            .into_iter()
            .any(|token| token.to_string() == "test"),
        _ => false,
    })
}
