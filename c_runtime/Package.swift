// swift-tools-version:5.7
// This folder as a package for Apple's systems: add it to an app in Xcode, or by .package(path: "…/runtime").
import PackageDescription

let package = Package(
  name: "EdgePos",
  platforms: [.iOS(.v15), .macOS(.v12)],
  products: [.library(name: "EdgePos", targets: ["EdgePos"])],
  targets: [
    .target(
      name: "CEdgePos",
      path: ".",
      exclude: ["CMakeLists.txt", "cli", "cmake", "mobile/README.md", "mobile/android", "mobile/swift", "ports/baremetal", "ports/embed.S", "ports/threads_none.c"],
      sources: ["src", "ports/threads_pthread.c", "mobile/edgepos_mobile.c"],
      publicHeadersPath: "mobile/include",
      cSettings: [.headerSearchPath("include"), .headerSearchPath("ports")]
    ),
    .target(name: "EdgePos", dependencies: ["CEdgePos"], path: "mobile/swift"),
  ]
)
