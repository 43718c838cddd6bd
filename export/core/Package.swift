// swift-tools-version:5.7
import PackageDescription

let package = Package(
  name: "Edgedistill",
  products: [.library(name: "Edgedistill", targets: ["Edgedistill"])],
  targets: [
    .target(name: "CEdgedistill", path: ".", exclude: ["swift", "jvm", "sqlite"], sources: ["edgedistill.c"], publicHeadersPath: "."),
    .target(name: "Edgedistill", dependencies: ["CEdgedistill"], path: "swift"),
  ]
)
