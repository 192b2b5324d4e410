from selftrain.cli import main

main()
